//! Traces: what they say, and how they are refused.

use std::io::{self, BufReader, Read};
use std::time::Duration;

use armature_sim::{Format, Trace, TraceError};

fn read(text: &str, format: Format) -> Result<Vec<armature_sim::SimRequest>, TraceError> {
    Trace::new(text.as_bytes(), format).collect()
}

const LINE: &str = r#"{"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [4, 9]}"#;

#[test]
fn a_mooncake_line_is_ids_of_512_tokens_and_times_start_at_0() {
    let text = format!(
        "{LINE}\n\n{}\n",
        LINE.replace("3000", "4500.5").replace("[4, 9]", "[4, 8]").replace("7,", "0,")
    );
    let [first, second] = &read(&text, Format::Mooncake).unwrap()[..] else { panic!("two requests") };
    assert_eq!((first.at, second.at), (Duration::ZERO, Duration::from_micros(1_500_500)));
    assert_eq!((first.prompt.len(), first.output, second.output), (600, 7, 1));
    let (one, other) = (first.prompt.tokens(), second.prompt.tokens());
    assert_eq!(one[..512], other[..512]);
    assert_ne!(one[512..], other[512..]);
    assert_ne!(first.answer, second.answer);
}

#[test]
fn csv_has_milliseconds_or_dates_and_prompts_that_share_nothing() {
    let dated = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 23:59:59.9500000,100,10\n2023-11-17T00:00:01,100,8\n";
    let requests = read(dated, Format::Csv).unwrap();
    assert_eq!(requests[1].at, Duration::from_millis(1050));
    assert_ne!(requests[0].prompt.tokens()[..64], requests[1].prompt.tokens()[..64]);
    let plain = read("5,100,10,more\n1005, 20 ,8\n", Format::Csv).unwrap();
    assert_eq!((plain[1].at, plain[1].prompt.len(), plain[1].output), (Duration::from_secs(1), 20, 8));
}

#[test]
fn the_name_of_a_file_says_its_format() {
    assert_eq!(Format::of("a/b.CSV".as_ref()), Format::Csv);
    assert_eq!(Format::of("a/b.jsonl".as_ref()), Format::Mooncake);
}

#[test]
fn what_is_malformed_is_named_with_its_line() {
    let second = |line: &str| format!("{LINE}\n{line}\n");
    let cases: [(String, Format, &str); 12] = [
        (second("{"), Format::Mooncake, "line 2: EOF while parsing"),
        (second(r#"{"timestamp": 1}"#), Format::Mooncake, "line 2: missing field"),
        (second(&LINE.replace("600", "-1")), Format::Mooncake, "line 2: invalid value"),
        (
            second(&LINE.replace("600", "1600")),
            Format::Mooncake,
            "line 2: 2 hash_ids for an input_length of 1600",
        ),
        (second(&LINE.replace("600", "0").replace("4, 9", "")), Format::Mooncake, "line 2: 0 input tokens"),
        (second(&LINE.replace("3000", "2999")), Format::Mooncake, "line 2: its timestamp is before"),
        (second(&LINE.replace("3000", "1e300")), Format::Mooncake, "line 2: timestamp"),
        (second(&LINE.replace("7,", "99999999999,")), Format::Mooncake, "line 2: 99999999999 output tokens"),
        ("1,2\n".into(), Format::Csv, "line 1: it has fewer than three columns"),
        ("1,2,3\nx,2,3\n".into(), Format::Csv, "line 2: \"x\" is neither milliseconds nor a date"),
        ("1,2,3\n2,two,3\n".into(), Format::Csv, "line 2: \"two\" is not a number of tokens"),
        ("\n\n".into(), Format::Csv, "there is no request in it"),
    ];
    for (text, format, expected) in cases {
        let error = read(&text, format).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

#[test]
fn bytes_that_are_no_text_and_lines_without_end_are_refused() {
    let bytes: &[u8] = &[0xff, 0xfe, b'\n'];
    let error = Trace::new(bytes, Format::Csv).next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "line 1: it is not UTF-8");
    let endless = BufReader::new(io::repeat(b'7').take(1 << 30));
    let mut trace = Trace::new(endless, Format::Mooncake);
    assert!(matches!(trace.next(), Some(Err(TraceError::LineTooLong { line: 1 }))));
    assert!(trace.next().is_none(), "nothing follows an error");
    let missing = Trace::open("/nowhere/trace.jsonl".as_ref()).err().unwrap();
    assert!(matches!(missing, TraceError::Open { .. }));
}
