//! Server-sent events out of a stream of bytes, however the network cuts it.
//!
//! Only `data` matters here: comments (engines send them to keep a connection open) and other fields are passed over. Lines end with LF, CR LF
//! or CR. An event that the stream's end cuts off is not an event.

/// Longest event in bytes. A token with twenty alternatives has about 2 KiB.
pub const MAX_EVENT: usize = 1 << 20;

/// An engine sends an event that does not end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {limit} bytes")]
pub struct Oversized {
    /// The bound.
    pub limit: usize,
}

/// A decoder in the middle of a stream. It holds at most twice its limit.
#[derive(Debug)]
pub struct SseDecoder {
    limit: usize,
    line: Vec<u8>,
    data: Option<Vec<u8>>,
    /// The last byte was a CR: an LF right after it belongs to the same line end.
    after_cr: bool,
}

impl Default for SseDecoder {
    fn default() -> Self {
        Self::new(MAX_EVENT)
    }
}

impl SseDecoder {
    /// At the start of a stream whose events have at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, line: Vec::new(), data: None, after_cr: false }
    }

    /// Takes bytes, and gives the data of each event that they complete.
    ///
    /// # Errors
    /// [`Oversized`]; the stream cannot be followed any more.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Oversized> {
        let mut events = Vec::new();
        for byte in bytes {
            match byte {
                b'\n' if std::mem::take(&mut self.after_cr) => {}
                b'\n' | b'\r' => {
                    self.after_cr = *byte == b'\r';
                    events.extend(self.line_ends()?);
                }
                byte => {
                    self.after_cr = false;
                    self.line.push(*byte);
                    if self.line.len() > self.limit {
                        return Err(Oversized { limit: self.limit });
                    }
                }
            }
        }
        Ok(events)
    }

    fn line_ends(&mut self) -> Result<Option<Vec<u8>>, Oversized> {
        let line = std::mem::take(&mut self.line);
        if line.is_empty() {
            return Ok(self.data.take());
        }
        let (field, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (&line[..], &[][..]),
        };
        if field == b"data" {
            let value = value.strip_prefix(b" ").unwrap_or(value);
            match &mut self.data {
                None => self.data = Some(value.to_vec()),
                Some(data) => {
                    data.push(b'\n');
                    data.extend_from_slice(value);
                    if data.len() > self.limit {
                        return Err(Oversized { limit: self.limit });
                    }
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn whole(stream: &[u8]) -> Vec<Vec<u8>> {
        SseDecoder::default().push(stream).unwrap()
    }

    #[test]
    fn data_is_found_among_comments_other_fields_and_every_kind_of_line_end() {
        let stream = b": ping\n\ndata: {\"a\":1}\r\n\r\nevent: x\rid: 7\rdata:two\rdata: lines\r\rdata\n\nother: 1\n\ndata: cut off";
        assert_eq!(whole(stream), [&b"{\"a\":1}"[..], b"two\nlines", b""]);
    }

    #[test]
    fn an_event_without_end_is_refused_at_the_limit() {
        let mut decoder = SseDecoder::new(16);
        assert_eq!(decoder.push(b"data: 0123456789").unwrap(), Vec::<Vec<u8>>::new());
        assert_eq!(decoder.push(b"x").unwrap_err(), Oversized { limit: 16 });
        let mut many_lines = SseDecoder::new(16);
        assert_eq!(many_lines.push(&b"data: 01234567\n".repeat(3)).unwrap_err(), Oversized { limit: 16 });
    }

    /// A stream as engines send it: multi-byte text, comments, line ends of all kinds.
    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            "data: [a-z:é漢 ]{0,12}",
            Just(": keep-alive".to_owned()),
            Just(String::new()),
            "event: [a-z]{1,5}",
            Just("data: [DONE]".to_owned()),
        ];
        let end = prop_oneof![Just("\n"), Just("\r\n"), Just("\r")];
        prop::collection::vec((piece, end), 0..12).prop_map(|lines| {
            lines.iter().map(|(line, end)| format!("{line}{end}")).collect::<String>().into_bytes()
        })
    }

    proptest! {
        #[test]
        fn where_the_stream_is_cut_changes_nothing(stream in streams()) {
            let expected = whole(&stream);
            for at in 0..=stream.len() {
                let mut decoder = SseDecoder::default();
                let mut events = decoder.push(&stream[..at]).unwrap();
                events.extend(decoder.push(&stream[at..]).unwrap());
                prop_assert_eq!(&events, &expected, "cut at {}", at);
            }
            let mut decoder = SseDecoder::default();
            let bytewise: Vec<Vec<u8>> =
                stream.iter().flat_map(|byte| decoder.push(std::slice::from_ref(byte)).unwrap()).collect();
            prop_assert_eq!(bytewise, expected);
        }

        #[test]
        fn no_bytes_make_it_panic_or_grow(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut decoder = SseDecoder::new(64);
            if decoder.push(&bytes).is_ok() {
                prop_assert!(decoder.line.len() <= 64 && decoder.data.as_ref().is_none_or(|data| data.len() <= 64));
            }
        }
    }
}
