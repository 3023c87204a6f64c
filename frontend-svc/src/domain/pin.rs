//! Workers that were chosen for a request before it came here.

use armature_contracts::ids::WorkerRank;

/// Header with the decode worker.
pub const DECODE: &str = "x-armature-pin-decode";
/// Header with the prefill worker.
pub const PREFILL: &str = "x-armature-pin-prefill";

/// Workers for the first try of a request; when they cannot take it, any may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// Leads.
    pub decode: WorkerRank,
    /// Prefills; none: as the router likes.
    pub prefill: Option<WorkerRank>,
}

impl Pin {
    /// Reads the headers that `header` gives by name. What is no worker is no pin: a stale or mangled header costs locality, not the request.
    pub fn from_headers<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let rank = |name| header(name)?.parse().ok();
        Some(Self { decode: rank(DECODE)?, prefill: rank(PREFILL) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn headers_are_workers_or_nothing() {
        let read = |decode, prefill| {
            Pin::from_headers(|name| match name {
                DECODE => decode,
                PREFILL => prefill,
                _ => None,
            })
        };
        let (one, two) = ("00000000000000a1", "00000000000000a2/3");
        let pin = read(Some(one), Some(two)).unwrap();
        assert_eq!((pin.decode.to_string(), pin.prefill.unwrap().to_string()), (one.into(), two.into()));
        assert_eq!(read(Some(one), Some("?")).unwrap().prefill, None);
        assert_eq!(read(None, Some(two)), None);
        for wrong in [
            "",
            "a1",
            "00000000000000a1/",
            "00000000000000a1/x",
            "00000000000000a1/4294967296",
            "zz000000000000a1",
        ] {
            assert_eq!(read(Some(wrong), None), None, "{wrong}");
        }
    }
}
