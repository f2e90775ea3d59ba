//! The greeting: 128 bytes a server sends first, in two lines of 64.
//!
//! ```text
//! Tarantool 3.9.0 (Binary) d3a7fe0d-c595-4063-8e49-4b86af8246a8 \n
//! <base64 of a salt of 32 bytes>                                \n
//! ```
//!
//! Source: `src/box/xrow.c`, `greeting_decode`, `greeting_encode` (3.9-dev).

use super::constants::GREETING_SIZE;
use base64::Engine;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Bytes of the salt that the authentication methods use; the least a greeting must carry.
pub const SALT_USED: usize = 20;
/// Bytes of the salt a server sends.
pub const SALT_SIZE: usize = 32;
const LINE: usize = GREETING_SIZE / 2;
const UUID_LEN: usize = 36;
/// Versions are shorter than this.
const VERSION_LIMIT: usize = 20;
/// Protocol names are at most this long.
const PROTOCOL_MAX: usize = 32;

/// A server's version as one comparable number: `major << 16 | minor << 8 | patch`.
pub const fn version_id(major: u32, minor: u32, patch: u32) -> u32 {
    (((major << 8) | minor) << 8) | patch
}

/// What a greeting says. Texts borrow from its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Greeting<'a> {
    /// The version as [`version_id`].
    pub version_id: u32,
    /// `Binary`, or another protocol's name, with which nothing else is filled in.
    pub protocol: &'a str,
    /// The server's UUID in its text form; `None` before 1.6.7.
    pub uuid: Option<&'a str>,
    /// The first [`SALT_USED`] bytes of the salt.
    pub salt: [u8; SALT_USED],
}

/// Why 128 bytes are no greeting; the text at the surface is always `Invalid greeting`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidGreeting;

impl std::fmt::Display for InvalidGreeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Invalid greeting")
    }
}

impl std::error::Error for InvalidGreeting {}

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

fn skip_spaces(mut text: &str) -> &str {
    while let Some(rest) = text.strip_prefix(' ') {
        text = rest;
    }
    text
}

/// As `sscanf("%u.%u.%u")`: three numbers with dots between; whatever follows them is ignored.
fn parse_version(text: &str) -> Option<u32> {
    let mut parts = [0_u32; 3];
    let mut rest = text;
    for (i, part) in parts.iter_mut().enumerate() {
        if i > 0 {
            rest = rest.strip_prefix('.')?;
        }
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, after) = rest.split_at_checked(digits)?;
        *part = number.parse().ok()?;
        rest = after;
    }
    let [major, minor, patch] = parts;
    Some(version_id(major & 0xff, minor & 0xff, patch & 0xff))
}

fn is_uuid(text: &str) -> bool {
    text.len() == UUID_LEN
        && text.bytes().enumerate().all(|(i, b)| match i {
            8 | 13 | 18 | 23 => b == b'-',
            _ => b.is_ascii_hexdigit(),
        })
}

/// Reads a greeting.
///
/// # Errors
/// [`InvalidGreeting`] for anything that breaks the rules of the format; a well-formed greeting of another protocol is
/// no error (its `protocol` says so).
pub fn decode(bytes: &[u8; GREETING_SIZE]) -> Result<Greeting<'_>, InvalidGreeting> {
    let (first, second) = bytes.split_at(LINE);
    let (Some((b'\n', first)), Some((b'\n', second))) = (first.split_last(), second.split_last()) else {
        return Err(InvalidGreeting);
    };
    let line = std::str::from_utf8(first).map_err(|_| InvalidGreeting)?;
    let line = skip_spaces(line.strip_prefix("Tarantool ").ok_or(InvalidGreeting)?);
    let (version, line) = line.split_once(' ').ok_or(InvalidGreeting)?;
    if version.len() >= VERSION_LIMIT {
        return Err(InvalidGreeting);
    }
    let version_id = parse_version(version).ok_or(InvalidGreeting)?;
    let line = skip_spaces(line);

    let mut greeting = Greeting { version_id, protocol: "Binary", uuid: None, salt: [0; SALT_USED] };
    if let Some(rest) = line.strip_prefix('(') {
        let (protocol, rest) = rest.split_once(')').ok_or(InvalidGreeting)?;
        if protocol.len() > PROTOCOL_MAX {
            return Err(InvalidGreeting);
        }
        greeting.protocol = protocol;
        if protocol != "Binary" {
            return Ok(greeting);
        }
        if version_id >= self::version_id(1, 6, 7) {
            let rest = skip_spaces(rest.strip_prefix(' ').ok_or(InvalidGreeting)?);
            let uuid = rest.get(..UUID_LEN).filter(|text| is_uuid(text)).ok_or(InvalidGreeting)?;
            greeting.uuid = Some(uuid);
        }
    } else if version_id >= self::version_id(1, 6, 7) {
        // Only servers before 1.6.7 leave "(Binary)" out.
        return Err(InvalidGreeting);
    }
    greeting.salt = decode_salt(second).ok_or(InvalidGreeting)?;
    Ok(greeting)
}

fn decode_salt(line: &[u8]) -> Option<[u8; SALT_USED]> {
    let mut salt = [0_u8; LINE];
    let len = BASE64.decode_slice(line.trim_ascii(), &mut salt).ok()?;
    salt.get(..len)?.first_chunk().copied()
}

/// Writes a server's greeting. `version` must be shorter than 20 characters and `uuid` 36 characters long for the
/// result to be valid; longer texts are cut at the line's end.
pub fn encode(version: &str, uuid: &str, salt: &[u8; SALT_SIZE]) -> [u8; GREETING_SIZE] {
    let mut bytes = [b' '; GREETING_SIZE];
    let (first, second) = bytes.split_at_mut(LINE);
    let text = ["Tarantool ", version, " (Binary) ", uuid, " "].into_iter().flat_map(str::bytes);
    first.iter_mut().zip(text).for_each(|(to, from)| *to = from);
    // 32 bytes make 44 characters, which fit the line; the slice is long enough for any salt of this size.
    let _ = base64::engine::general_purpose::STANDARD.encode_slice(salt, second);
    for line in [first, second] {
        if let Some(end) = line.last_mut() {
            *end = b'\n';
        }
    }
    bytes
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const UUID: &str = "d3a7fe0d-c595-4063-8e49-4b86af8246a8";

    fn with(line: &str, salt: &str) -> [u8; GREETING_SIZE] {
        let mut bytes = [b' '; GREETING_SIZE];
        bytes[..line.len()].copy_from_slice(line.as_bytes());
        bytes[LINE..LINE + salt.len()].copy_from_slice(salt.as_bytes());
        bytes[LINE - 1] = b'\n';
        bytes[GREETING_SIZE - 1] = b'\n';
        bytes
    }

    const SALT: &str = "VlNur+LzwqBO6GvjoVmsNDy+J1XGyxA8o7FUocrKks8=";

    #[test]
    fn what_is_encoded_is_decoded() {
        let salt: [u8; 32] = std::array::from_fn(|i| i as u8);
        let bytes = encode("3.9.0", UUID, &salt);
        let greeting = decode(&bytes).unwrap();
        assert_eq!(greeting.version_id, version_id(3, 9, 0));
        assert_eq!(greeting.protocol, "Binary");
        assert_eq!(greeting.uuid, Some(UUID));
        assert_eq!(greeting.salt[..], salt[..20]);
    }

    #[test]
    fn versions_may_have_a_tail() {
        let bytes = with(&format!("Tarantool 2.6.0-1 (Binary) {UUID}"), SALT);
        assert_eq!(decode(&bytes).map(|g| g.version_id), Ok(version_id(2, 6, 0)));
    }

    #[test]
    fn old_servers_name_no_protocol_and_no_uuid() {
        let bytes = with("Tarantool 1.6.6 ", SALT);
        let greeting = decode(&bytes).unwrap();
        assert_eq!((greeting.protocol, greeting.uuid), ("Binary", None));
        let bytes = with("Tarantool 1.6.6 (Binary)", SALT);
        assert_eq!(decode(&bytes).unwrap().uuid, None);
    }

    #[test]
    fn another_protocol_is_named() {
        let bytes = with("Tarantool 2.6.0 (Lua console)", "type 'help' for interactive help");
        assert_eq!(decode(&bytes).unwrap().protocol, "Lua console");
    }

    #[test]
    fn every_broken_rule_is_an_invalid_greeting() {
        let good = with(&format!("Tarantool 3.9.0 (Binary) {UUID}"), SALT);
        assert!(decode(&good).is_ok());
        for position in [LINE - 1, GREETING_SIZE - 1, 0] {
            let mut bytes = good;
            bytes[position] = b'x';
            assert_eq!(decode(&bytes), Err(InvalidGreeting), "byte {position}");
        }
        for line in [
            "Tarantool",
            "Tarantool 3.9.0",
            "Tarantool 3.9 (Binary)",
            "Tarantool x.y.z (Binary)",
            "Tarantool 3.9.0-0123456789abcdef (Binary) d3a7fe0d-c595-4063",
            "Tarantool 3.9.0 Binary",
            "Tarantool 3.9.0 (Binary",
            "Tarantool 3.9.0 (Binary)",
            "Tarantool 3.9.0 (Binary) d3a7fe0d",
            "Tarantool 3.9.0 (Binary) d3a7fe0d_c595_4063_8e49_4b86af8246a8",
            "Tarantool 3.9.0 (0123456789012345678901234567890123)",
        ] {
            assert_eq!(decode(&with(line, SALT)), Err(InvalidGreeting), "{line}");
        }
        for salt in ["", "VlNur+LzwqBO6GvjoVms", "not base64 at all!"] {
            let bytes = with(&format!("Tarantool 3.9.0 (Binary) {UUID}"), salt);
            assert_eq!(decode(&bytes), Err(InvalidGreeting), "{salt}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn any_bytes_are_a_greeting_or_not(bytes in any::<[[u8; 32]; 4]>()) {
            let mut whole = [0_u8; GREETING_SIZE];
            whole.iter_mut().zip(bytes.concat()).for_each(|(to, from)| *to = from);
            whole[..10].copy_from_slice(b"Tarantool ");
            whole[LINE - 1] = b'\n';
            whole[GREETING_SIZE - 1] = b'\n';
            let _ = decode(&whole);
        }
    }
}
