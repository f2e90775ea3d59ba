//! Updates inside a field, which a JSON path leads to: `tags[2]`, `address.city`, `[3]["a key"]`.
//!
//! Containers of MessagePack do not know their length in bytes, so a change deep inside touches the bytes of the one
//! value and the header of the one container around it.
//!
//! Source: `src/lib/json/json.c` (paths), `src/box/xrow_update_bar.c`, Tarantool 3.9-dev.

use super::mp::{self, Value};
use crate::iproto::mp as put;
use std::ops::Range;

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// An element of an array, from 0.
    Index(u32),
    /// A key of a map.
    Key(&'a [u8]),
    /// `[*]`, or what is no path at all: the position of the mistake, from 1.
    Bad(usize),
}

/// Takes a path apart; it ends at the first mistake.
pub(super) fn parse(path: &[u8]) -> Vec<Token<'_>> {
    let mut lexer = Lexer { path, at: 0, symbols: 0 };
    let mut tokens = Vec::new();
    while lexer.at < path.len() {
        let token = lexer.token().unwrap_or_else(Token::Bad);
        tokens.push(token);
        if matches!(token, Token::Bad(_)) {
            break;
        }
    }
    tokens
}

struct Lexer<'a> {
    path: &'a [u8],
    at: usize,
    symbols: usize,
}

impl<'a> Lexer<'a> {
    fn peek(&self) -> Option<u8> {
        self.path.get(self.at).copied()
    }

    /// The next character; a mistake at the end and at bytes that are none.
    fn symbol(&mut self) -> Result<char, usize> {
        let rest = self.path.get(self.at..).unwrap_or_default();
        let chunk = rest.get(..4).unwrap_or(rest);
        let valid = match std::str::from_utf8(chunk) {
            Ok(text) => text,
            Err(error) => chunk.get(..error.valid_up_to()).and_then(|b| std::str::from_utf8(b).ok()).unwrap_or(""),
        };
        let c = valid.chars().next().ok_or(self.symbols + 1)?;
        self.at += c.len_utf8();
        self.symbols += 1;
        Ok(c)
    }

    fn token(&mut self) -> Result<Token<'a>, usize> {
        let first = self.at == 0;
        let before = (self.at, self.symbols);
        match self.symbol()? {
            '[' => self.brackets(),
            '.' if self.peek().is_none() => Err(self.symbols + 1),
            '.' => self.identifier(),
            _ if first => {
                (self.at, self.symbols) = before;
                self.identifier()
            }
            _ => Err(self.symbols),
        }
    }

    fn brackets(&mut self) -> Result<Token<'a>, usize> {
        let token = match self.peek() {
            None => return Err(self.symbols),
            Some(quote @ (b'"' | b'\'')) => self.quoted(quote.into())?,
            // No update is made through all elements at once.
            Some(b'*') => return Err(self.symbols + 1),
            Some(_) => self.integer()?,
        };
        if self.peek() != Some(b']') {
            return Err(self.symbols + 1);
        }
        self.symbol()?;
        Ok(token)
    }

    fn quoted(&mut self, quote: char) -> Result<Token<'a>, usize> {
        self.symbol()?;
        let start = self.at;
        while self.symbol()? != quote {}
        match self.path.get(start..self.at - 1) {
            Some(key) if !key.is_empty() => Ok(Token::Key(key)),
            _ => Err(self.symbols),
        }
    }

    fn integer(&mut self) -> Result<Token<'a>, usize> {
        let rest = self.path.get(self.at..).unwrap_or_default();
        let len = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        let digits = rest.get(..len).and_then(|d| std::str::from_utf8(d).ok()).unwrap_or_default();
        let number = digits.parse::<i32>().ok().filter(|n| *n >= 1).ok_or(self.symbols + 1)?;
        self.at += len;
        self.symbols += len;
        Ok(Token::Index(number as u32 - 1))
    }

    fn identifier(&mut self) -> Result<Token<'a>, usize> {
        let start = self.at;
        let c = self.symbol()?;
        if !c.is_alphabetic() && c != '_' {
            return Err(self.symbols);
        }
        loop {
            let before = (self.at, self.symbols);
            match self.symbol() {
                Ok(c) if c.is_alphanumeric() || c == '_' => {}
                _ => {
                    (self.at, self.symbols) = before;
                    break;
                }
            }
        }
        Ok(Token::Key(self.path.get(start..self.at).unwrap_or_default()))
    }
}

/// The place in a field that a path leads to.
pub(super) struct Place<'a> {
    field: &'a [u8],
    /// Where the container around the place starts, and what it is.
    parent: usize,
    kind: Value<'a>,
    last: Token<'a>,
    /// The value there, if there is one; of a map also where its key starts.
    found: Option<(usize, Range<usize>)>,
}

/// Why there is no such place.
pub(super) enum Lost {
    /// Something on the way is missing.
    Missing,
    /// The path is wrong at that position.
    Path(usize),
    /// Whatever the text says.
    Reason(&'static str),
}

impl<'a> Place<'a> {
    /// Follows a path of at least one token into a field. Where the way breaks off, an operation that `adds` first looks
    /// whether the path goes on as one.
    pub(super) fn find(field: &'a [u8], path: &[Token<'a>], adds: bool) -> Result<Self, Lost> {
        let (last, way) = path.split_last().ok_or(Lost::Missing)?;
        let mut parent = 0;
        for (token, next) in way.iter().zip(path.iter().skip(1)) {
            parent = match (step(field, parent, *token)?, next) {
                (Some((_, range)), _) => range.start,
                (None, Token::Bad(position)) if adds => return Err(Lost::Path(*position)),
                (None, _) => return Err(Lost::Missing),
            };
        }
        let kind = header(field, parent).ok_or(Lost::Missing)?.0;
        Ok(Place { field, parent, kind, last: *last, found: step(field, parent, *last)? })
    }

    /// The bytes of the value, which must be there.
    pub(super) fn value(&self) -> Result<&'a [u8], Lost> {
        let (_, range) = self.found.as_ref().ok_or(Lost::Missing)?;
        self.field.get(range.clone()).ok_or(Lost::Missing)
    }

    /// The field with another value in the place, or with the value added where one can be.
    pub(super) fn set(&self, value: &[u8]) -> Result<Vec<u8>, Lost> {
        match &self.found {
            Some((_, range)) => Ok(self.edit(range.clone(), value, 0)),
            None => self.add(value),
        }
    }

    /// The field with a value more in front of the place; keys of maps must be new.
    pub(super) fn insert(&self, value: &[u8]) -> Result<Vec<u8>, Lost> {
        match (&self.found, self.kind) {
            (Some(_), Value::Map(_)) => Err(Lost::Reason("the key exists already")),
            (Some((_, range)), _) => Ok(self.edit(range.start..range.start, value, 1)),
            (None, _) => self.add(value),
        }
    }

    fn add(&self, value: &[u8]) -> Result<Vec<u8>, Lost> {
        let end = || self.parent + self.field.get(self.parent..).and_then(mp::skip).unwrap_or_default();
        match (self.last, self.kind) {
            (Token::Index(n), Value::Array(count)) if n == count => Ok(self.edit(end()..end(), value, 1)),
            (Token::Index(_), Value::Array(_)) => Err(Lost::Missing),
            (Token::Index(_), _) => Err(Lost::Reason("can not access by index a non-array field")),
            (Token::Key(key), Value::Map(_)) => {
                let mut pair = Vec::with_capacity(key.len() + value.len() + 5);
                put::put_str(&mut pair, key);
                pair.extend_from_slice(value);
                // Tarantool puts new keys first.
                let start = self.parent + header(self.field, self.parent).map_or(0, |(_, length)| length);
                Ok(self.edit(start..start, &pair, 1))
            }
            (Token::Key(_), _) => Err(Lost::Reason("can not access by key a non-map field")),
            (Token::Bad(position), _) => Err(Lost::Path(position)),
        }
    }

    /// The field without `count` elements from the place on; of a map one key.
    pub(super) fn remove(&self, count: u64) -> Result<Vec<u8>, Lost> {
        let (start, range) = self.found.clone().ok_or(Lost::Missing)?;
        let (Token::Index(first), Value::Array(size)) = (self.last, self.kind) else {
            return match count {
                1 => Ok(self.edit(start..range.end, &[], -1)),
                _ => Err(Lost::Reason("can delete only 1 field from a map in a row")),
            };
        };
        let count = count.min(u64::from(size - first));
        let mut end = range.end;
        for _ in 1..count {
            end += self.field.get(end..).and_then(mp::skip).unwrap_or_default();
        }
        Ok(self.edit(start..end, &[], -(count as i64)))
    }

    /// The field with a part of the container replaced, and the container `growth` elements larger.
    fn edit(&self, range: Range<usize>, with: &[u8], growth: i64) -> Vec<u8> {
        let part = |range: Range<usize>| self.field.get(range).unwrap_or_default();
        let length = header(self.field, self.parent).map_or(0, |(_, length)| length);
        let mut out = Vec::with_capacity(self.field.len() + with.len() + 4);
        out.extend_from_slice(part(0..self.parent));
        match self.kind {
            Value::Array(count) => put::put_array(&mut out, (i64::from(count) + growth) as u32),
            Value::Map(count) => put::put_map(&mut out, (i64::from(count) + growth) as u32),
            _ => out.extend_from_slice(part(self.parent..self.parent + length)),
        }
        out.extend_from_slice(part(self.parent + length..range.start));
        out.extend_from_slice(with);
        out.extend_from_slice(part(range.end..self.field.len()));
        out
    }
}

fn header(field: &[u8], at: usize) -> Option<(Value<'_>, usize)> {
    mp::read(field.get(at..)?)
}

type Found = Option<(usize, Range<usize>)>;

/// Where an element or a key's value lies in the container at `at`; of a key also where it starts itself.
fn step(field: &[u8], at: usize, token: Token<'_>) -> Result<Found, Lost> {
    match token {
        Token::Bad(position) => Err(Lost::Path(position)),
        Token::Index(n) => Ok(element(field, at, n)),
        Token::Key(key) => Ok(entry(field, at, key)),
    }
}

fn element(field: &[u8], at: usize, number: u32) -> Found {
    let (Value::Array(count), length) = header(field, at)? else { return None };
    if number >= count {
        return None;
    }
    let mut start = at + length;
    for _ in 0..number {
        start += mp::skip(field.get(start..)?)?;
    }
    let end = start + mp::skip(field.get(start..)?)?;
    Some((start, start..end))
}

fn entry(field: &[u8], at: usize, key: &[u8]) -> Found {
    let (Value::Map(count), length) = header(field, at)? else { return None };
    let mut start = at + length;
    for _ in 0..count {
        let value = start + mp::skip(field.get(start..)?)?;
        let end = value + mp::skip(field.get(value..)?)?;
        if header(field, start)?.0 == Value::Str(key) {
            return Some((start, value..end));
        }
        start = end;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let parse = |path: &'static str| super::parse(path.as_bytes());
        assert_eq!(parse("a.b"), [Token::Key(b"a"), Token::Key(b"b")]);
        assert_eq!(parse("[2].b[3]"), [Token::Index(1), Token::Key(b"b"), Token::Index(2)]);
        assert_eq!(parse("a['x y'][\"z\"]"), [Token::Key(b"a"), Token::Key(b"x y"), Token::Key(b"z")]);
        assert_eq!(parse("ключ._1"), [Token::Key("ключ".as_bytes()), Token::Key(b"_1")]);
    }

    #[test]
    fn mistakes_are_at_the_position_that_tarantool_names() {
        // tarantool> s:update(1, {{'=', 'a' .. rest, 1}}): invalid JSON in position N
        let position = |path: &[u8]| match parse(path).last() {
            Some(Token::Bad(position)) => *position,
            other => panic!("{other:?}"),
        };
        for (path, expected) in [
            (&b"a["[..], 2),
            (b"a[0]", 3),
            (b"a[x]", 3),
            (b"a[1", 4),
            (b"a.", 3),
            (b"a.1", 3),
            (b"a..b", 3),
            (b"a['']", 4),
            (b"a['x", 5),
            (b"a b", 2),
            (b"a[*]", 3),
            (b"a[99999999999]", 3),
            (b"a.\xff", 3),
        ] {
            assert_eq!(position(path), expected, "{path:?}");
        }
    }
}
