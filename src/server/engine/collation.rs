//! The collations an index may have, through the sort keys of ICU4X.
//!
//! Source: the predefined rows of `_collation`, Tarantool 3.9-dev (ids 0..3).

use icu_collator::options::{CollatorOptions, Strength};
use icu_collator::{CollatorBorrowed, CollatorPreferences};
use std::sync::OnceLock;

/// How strings are compared when not by their bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collation {
    /// The root order of Unicode, case and accents included.
    Unicode,
    /// The same with base letters only: neither case nor accents count.
    UnicodeCi,
}

/// The rows of `_vcollation`: id, name, type, locale, strength.
pub(crate) const ROWS: [(u32, &str, &str, &str, Option<&str>); 4] = [
    (0, "none", "BINARY", "", None),
    (1, "unicode", "ICU", "", Some("tertiary")),
    (2, "unicode_ci", "ICU", "", Some("primary")),
    (3, "binary", "BINARY", "", None),
];

impl Collation {
    /// The collation of a row of `_vcollation`; nothing inside means comparison by bytes.
    pub(crate) fn by_id(id: u32) -> Option<Option<Self>> {
        match id {
            0 | 3 => Some(None),
            1 => Some(Some(Collation::Unicode)),
            2 => Some(Some(Collation::UnicodeCi)),
            _ => None,
        }
    }

    /// The id of the collation in `_vcollation`.
    pub fn id(self) -> u32 {
        match self {
            Collation::Unicode => 1,
            Collation::UnicodeCi => 2,
        }
    }

    /// The name of the row of `_vcollation`.
    pub(crate) fn name_of(id: u32) -> Option<&'static str> {
        ROWS.iter().find(|row| row.0 == id).map(|row| row.1)
    }

    /// The id behind a name, as Tarantool looks it up: as it is, then in lower case.
    pub(crate) fn id_by_name(name: &str) -> Option<u32> {
        let name = name.to_lowercase();
        ROWS.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// Bytes that compare as the strings do.
    pub(crate) fn sort_key(self, s: &[u8]) -> Vec<u8> {
        let mut key = Vec::with_capacity(2 * s.len() + 8);
        match self.collator() {
            // Writing to a Vec cannot fail.
            Some(collator) => {
                let _ = collator.write_sort_key_utf8_to(s, &mut key);
            }
            None => key.extend_from_slice(s),
        }
        key
    }

    /// Nothing only if the data compiled into the library were damaged.
    fn collator(self) -> Option<&'static CollatorBorrowed<'static>> {
        static UNICODE: OnceLock<Option<CollatorBorrowed<'static>>> = OnceLock::new();
        static UNICODE_CI: OnceLock<Option<CollatorBorrowed<'static>>> = OnceLock::new();
        let (cell, strength) = match self {
            Collation::Unicode => (&UNICODE, Strength::Tertiary),
            Collation::UnicodeCi => (&UNICODE_CI, Strength::Primary),
        };
        let make = || {
            let mut options = CollatorOptions::default();
            options.strength = Some(strength);
            CollatorBorrowed::try_new(CollatorPreferences::default(), options).ok()
        };
        cell.get_or_init(make).as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unicode_ci_sees_base_letters_only() {
        let key = |s: &str| Collation::UnicodeCi.sort_key(s.as_bytes());
        assert_eq!(key("USER4"), key("user4"));
        assert_eq!(key("Été"), key("ete"));
        assert!(key("a") < key("B") && key("B") < key("c"));
    }

    #[test]
    fn unicode_tells_case_apart_after_the_letters() {
        let key = |s: &str| Collation::Unicode.sort_key(s.as_bytes());
        assert!(key("a") < key("A") && key("A") < key("b") && key("ab") > key("AA"));
        assert_ne!(key("e"), key("é"));
    }

    #[test]
    fn names() {
        assert_eq!(Collation::id_by_name("UNICODE_CI"), Some(2));
        assert_eq!(Collation::id_by_name("klingon"), None);
        assert_eq!(Collation::by_id(3), Some(None));
    }
}
