//! Server-sent events, as much as a client of our own API needs: `data:` lines in a byte stream.

/// Cuts a byte stream into the payloads of its `data:` lines, however the bytes arrive.
#[derive(Debug, Default)]
pub(crate) struct DataLines {
    rest: Vec<u8>,
}

impl DataLines {
    /// Takes more bytes; gives the payloads that are complete now.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut payloads = Vec::new();
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            if let Some(payload) = line.trim_end().strip_prefix("data:") {
                payloads.push(payload.trim_start().to_owned());
            }
        }
        payloads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_split_of_the_bytes_gives_the_same_payloads() {
        let text = "data: {\"a\":\"ä\"}\r\n\r\n: comment\n\ndata: [DONE]\n\n".as_bytes();
        for cut in 0..=text.len() {
            let mut lines = DataLines::default();
            let mut payloads = lines.push(&text[..cut]);
            payloads.extend(lines.push(&text[cut..]));
            assert_eq!(payloads, ["{\"a\":\"ä\"}", "[DONE]"], "cut at {cut}");
        }
    }
}
