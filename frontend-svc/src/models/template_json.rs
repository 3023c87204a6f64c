//! The `tojson` filter as chat templates expect it: Python's `json.dumps(ensure_ascii=False)`, not escaped for HTML.

use std::io::{self, Write};

use minijinja::value::Kwargs;
use minijinja::{Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Widest indentation: it is repeated on every line.
const MAX_INDENT: usize = 16;

/// `value | tojson` and `value | tojson(indent=2)`.
pub(super) fn tojson(value: &Value, indent: Option<usize>, options: Kwargs) -> Result<Value, Error> {
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<usize>>("indent")?,
    };
    // Python's further options change nothing that a prompt depends on.
    for ignored in ["ensure_ascii", "separators", "sort_keys"] {
        options.get::<Option<Value>>(ignored)?;
    }
    options.assert_all_used()?;
    let mut out = Vec::new();
    let written = match indent {
        Some(width) => {
            let blanks = " ".repeat(width.min(MAX_INDENT));
            value.serialize(&mut Serializer::with_formatter(
                &mut out,
                PrettyFormatter::with_indent(blanks.as_bytes()),
            ))
        }
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
    };
    written.map_err(|error| Error::new(ErrorKind::InvalidOperation, "not JSON").with_source(error))?;
    String::from_utf8(out)
        .map(Value::from_safe_string)
        .map_err(|error| Error::new(ErrorKind::InvalidOperation, "not UTF-8").with_source(error))
}

/// One line, with a space behind each comma and colon.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
