//! A byte-level BPE vocabulary: three special tokens, the 256 bytes, a few merges.

/// Begins a message, and is the begin-of-sequence token.
pub(crate) const BOS: usize = 1;
/// Ends a message, and is the end-of-sequence token.
pub(crate) const EOS: usize = 2;

const SPECIALS: [&str; 3] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];

/// In order of merging, so that each side is a byte or an earlier result; `Ġ` is the space.
const MERGES: [(&str, &str); 41] = [
    ("Ġ", "t"),
    ("Ġ", "a"),
    ("i", "n"),
    ("h", "e"),
    ("r", "e"),
    ("o", "n"),
    ("e", "r"),
    ("Ġt", "he"),
    ("a", "t"),
    ("Ġ", "s"),
    ("Ġ", "o"),
    ("e", "n"),
    ("Ġ", "c"),
    ("e", "s"),
    ("Ġ", "w"),
    ("n", "d"),
    ("i", "t"),
    ("o", "r"),
    ("i", "s"),
    ("a", "l"),
    ("Ġ", "p"),
    ("in", "g"),
    ("Ġ", "f"),
    ("a", "n"),
    ("e", "d"),
    ("Ġ", "b"),
    ("o", "u"),
    ("a", "r"),
    ("Ġ", "in"),
    ("Ġo", "f"),
    ("Ġ", "m"),
    ("Ġa", "nd"),
    ("i", "on"),
    ("Ġ", "d"),
    ("Ġt", "o"),
    ("l", "e"),
    ("s", "t"),
    ("l", "l"),
    ("he", "ll"),
    ("hell", "o"),
    ("Ġw", "or"),
];

/// The character that GPT-2's alphabet writes for a byte: itself where printable, otherwise the
/// next unused code point from 256 on.
fn byte_char(byte: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(256 + rank).expect("below the surrogates")
}

/// Every token, by id.
pub(crate) fn tokens() -> Vec<String> {
    let specials = SPECIALS.iter().map(|s| (*s).to_owned());
    let bytes = (0..=u8::MAX).map(|b| byte_char(b).to_string());
    let merged = MERGES.iter().map(|(left, right)| format!("{left}{right}"));
    specials.chain(bytes).chain(merged).collect()
}

/// Type of each token: 3 is control, 1 is normal.
pub(crate) fn token_types() -> Vec<i32> {
    (0..tokens().len()).map(|id| if id < SPECIALS.len() { 3 } else { 1 }).collect()
}

/// The merges, as pairs separated by a space.
pub(crate) fn merges() -> Vec<String> {
    MERGES.iter().map(|(left, right)| format!("{left} {right}")).collect()
}
