//! Numbers for a field of the primary key that clients leave out: `create_index('pk', {sequence = true})`.
//!
//! Source: `src/box/sequence.c`, `request_handle_sequence` of `src/box/request.c`, Tarantool 3.9-dev. Sequences of other
//! names, steps and bounds are not there.

use super::error::{self, BoxError, Field, Result};
use super::mp::{self, Value};
use crate::iproto::mp as put;

/// The sequence of one space: 1, 2, 3, ...
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sequence {
    pub(crate) id: u32,
    /// The field it fills, from 0.
    pub(crate) field: u32,
    /// The last number given or seen; nothing before the first.
    pub(crate) value: Option<i64>,
}

impl Sequence {
    /// The tuple with the next number in place of null; nothing when it can stay as it is. A number that is there
    /// already moves the sequence on if it is greater.
    ///
    /// # Errors
    /// `Sequence 'x' has overflowed`.
    pub(crate) fn complete(&mut self, space: &str, tuple: &[u8]) -> Result<Option<Vec<u8>>> {
        let Some(field) = mp::field(tuple, self.field) else { return Ok(None) };
        let seen = match mp::read(field) {
            Some((Value::Nil, _)) => return self.fill(space, tuple, field).map(Some),
            Some((Value::Uint(n), _)) => i64::try_from(n).ok(),
            Some((Value::Int(n), _)) => Some(n),
            _ => None,
        };
        self.value = self.value.max(seen);
        Ok(None)
    }

    fn fill(&mut self, space: &str, tuple: &[u8], field: &[u8]) -> Result<Vec<u8>> {
        let next = match self.value {
            Some(value) if value >= 1 => value.checked_add(1).ok_or_else(|| overflow(space))?,
            _ => 1,
        };
        self.value = Some(next);
        let start = field.as_ptr() as usize - tuple.as_ptr() as usize;
        let (head, tail) = tuple.split_at(start);
        let mut out = Vec::with_capacity(tuple.len() + 8);
        out.extend_from_slice(head);
        put::put_int(&mut out, next);
        out.extend_from_slice(tail.get(1..).unwrap_or_default());
        Ok(out)
    }
}

#[cold]
fn overflow(space: &str) -> BoxError {
    let name = name_of(space);
    BoxError::client(error::SEQUENCE_OVERFLOW, format!("Sequence '{name}' has overflowed"))
        .with("sequence", Field::Str(&name))
}

/// The name of a space's sequence.
pub(crate) fn name_of(space: &str) -> String {
    format!("{space}_seq")
}

#[cfg(test)]
mod tests {
    use super::super::show;
    use super::super::tests::mp;
    use super::*;

    #[test]
    fn null_becomes_the_next_number() {
        let mut sequence = Sequence { id: 1, field: 1, value: None };
        let mut complete = |text: &str| sequence.complete("s", &mp(text)).unwrap().map(|t| show::tuple(&t));
        assert_eq!(complete(r#"["a", null, 7]"#).as_deref(), Some(r#"["a", 1, 7]"#));
        assert_eq!(complete(r#"["a", null]"#).as_deref(), Some(r#"["a", 2]"#));
        assert_eq!(complete(r#"["a", 300]"#), None);
        assert_eq!(complete(r#"["a", null, 7]"#).as_deref(), Some(r#"["a", 301, 7]"#));
        assert_eq!(complete(r#"["a", 5]"#), None);
        assert_eq!(complete(r#"["a", "text"]"#), None);
        assert_eq!(complete(r#"["a"]"#), None);
        assert_eq!(complete(r#"["a", null]"#).as_deref(), Some(r#"["a", 302]"#));
        assert_eq!(complete(r#"["a", 9223372036854775807]"#), None);
        let error = sequence.complete("s", &mp(r#"["a", null]"#)).unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (147, "Sequence 's_seq' has overflowed"));
    }

    #[test]
    fn numbers_below_the_first_start_it_anew() {
        let mut sequence = Sequence { id: 1, field: 0, value: None };
        assert_eq!(sequence.complete("s", &mp("[-5]")).unwrap(), None);
        assert_eq!(sequence.complete("s", &mp("[null]")).unwrap(), Some(mp("[1]")));
    }
}
