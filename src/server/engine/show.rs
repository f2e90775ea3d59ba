//! Tuples as text, for error messages.
//!
//! Source: `mp_snprint` of msgpuck and `tuple_str` of `src/box/tuple.c`, Tarantool 3.9-dev.

use super::mp::{self, Value};
use super::number::Decimal;
use std::fmt::Write as _;

/// Longest text of one tuple, in bytes.
const LIMIT: usize = 1024;
/// Deepest nesting shown.
const DEPTH: usize = 32;

/// `[1, "a", null]`; what is longer than Tarantool's buffer ends with three dots.
pub(crate) fn tuple(raw: &[u8]) -> String {
    let mut out = String::new();
    let mut rest = raw;
    if show(&mut out, &mut rest, 0).is_none() && out.len() <= LIMIT {
        out.push_str("<invalid>");
    }
    if out.len() > LIMIT {
        let cut = (0..=LIMIT - 3).rev().find(|n| out.is_char_boundary(*n)).unwrap_or_default();
        out.truncate(cut);
        out.push_str("...");
    }
    out
}

/// Nothing when the value is broken or the text has become too long.
fn show(out: &mut String, rest: &mut &[u8], depth: usize) -> Option<()> {
    if out.len() > LIMIT {
        return None;
    }
    if depth > DEPTH {
        mp::take(rest)?;
        out.push_str("...");
        return Some(());
    }
    // Writing to a String cannot fail.
    let _ = match mp::next(rest)? {
        Value::Nil => write!(out, "null"),
        Value::Bool(b) => write!(out, "{b}"),
        Value::Uint(n) => write!(out, "{n}"),
        Value::Int(n) => write!(out, "{n}"),
        Value::F32(d) => write!(out, "{}", general(d.into())),
        Value::F64(d) => write!(out, "{}", general(d)),
        Value::Str(s) | Value::Bin(s) => {
            quote(out, s);
            Ok(())
        }
        Value::Array(n) => return show_array(out, rest, n, depth),
        Value::Map(n) => return show_map(out, rest, n, depth),
        Value::Ext(kind, body) => show_extension(out, kind, body),
    };
    Some(())
}

fn show_array(out: &mut String, rest: &mut &[u8], count: u32, depth: usize) -> Option<()> {
    out.push('[');
    for n in 0..count {
        if n > 0 {
            out.push_str(", ");
        }
        show(out, rest, depth + 1)?;
    }
    out.push(']');
    Some(())
}

fn show_map(out: &mut String, rest: &mut &[u8], count: u32, depth: usize) -> Option<()> {
    out.push('{');
    for n in 0..count {
        if n > 0 {
            out.push_str(", ");
        }
        show(out, rest, depth + 1)?;
        out.push_str(": ");
        show(out, rest, depth + 1)?;
    }
    out.push('}');
    Some(())
}

fn show_extension(out: &mut String, kind: i8, body: &[u8]) -> std::fmt::Result {
    if kind == mp::EXT_DECIMAL
        && let Some(decimal) = Decimal::unpack(body)
    {
        return write!(out, "{decimal}");
    }
    if kind == mp::EXT_UUID && body.len() == 16 {
        for (n, byte) in body.iter().enumerate() {
            let dash = if matches!(n, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(out, "{dash}{byte:02x}")?;
        }
        return Ok(());
    }
    write!(out, "(extension: type {kind}, len {})", body.len())
}

fn quote(out: &mut String, bytes: &[u8]) {
    out.push('"');
    for c in String::from_utf8_lossy(bytes).chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '/' => out.push_str("\\/"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\0'..='\u{1f}' | '\u{7f}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// `printf("%g")`.
fn general(d: f64) -> String {
    if d.is_nan() {
        return if d.is_sign_negative() { "-nan" } else { "nan" }.into();
    }
    if d.is_infinite() {
        return if d < 0.0 { "-inf" } else { "inf" }.into();
    }
    let text = format!("{d:.5e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let trim = |s: &str| {
        if s.contains('.') { s.trim_end_matches('0').trim_end_matches('.').to_string() } else { s.to_string() }
    };
    if (-4..6).contains(&exponent) {
        return trim(&format!("{d:.*}", (5 - exponent).max(0) as usize));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_every_kind() {
        let raw = b"\x9a\x64\xa3new\xc0\x90\xc3\xff\xcb\x3f\xf8\0\0\0\0\0\0\x82\xa1a\x01\x02\xc4\x01b\xd5\x01\x01\x5c\xc7\x01\x09\x00";
        assert_eq!(
            tuple(raw),
            r#"[100, "new", null, [], true, -1, 1.5, {"a": 1, 2: "b"}, 0.5, (extension: type 9, len 1)]"#
        );
        assert_eq!(tuple(b"\xa6\"\\/\n\x01\x7f"), r#""\"\\\/\n\u0001\u007f""#);
        let uuid = [&[0xd8, 2][..], &[0xab; 16]].concat();
        assert_eq!(tuple(&uuid), "abababab-abab-abab-abab-abababababab");
    }

    #[test]
    fn doubles_as_printf_g() {
        for (d, text) in [
            (0.0, "0"),
            (100_000.0, "100000"),
            (1e6, "1e+06"),
            (0.1 + 0.2, "0.3"),
            (1.0e-5, "1e-05"),
            (-2.5, "-2.5"),
            (123_456_789.0, "1.23457e+08"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(general(d), text);
        }
    }

    #[test]
    fn long_tuples_are_cut() {
        let long = [&[0xdb, 0, 0, 8, 0][..], &[b'x'; 2048]].concat();
        let text = tuple(&long);
        assert_eq!(text.len(), LIMIT);
        assert!(text.ends_with("xxx..."));
        let deep = vec![0x91; 100_000];
        assert!(tuple(&deep).len() <= LIMIT);
    }
}
