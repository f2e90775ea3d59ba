//! What the server reads out of requests itself: pure bytes. Statements are the engine's ([`super::engine::Statement`]).

use super::engine::error::{self, BoxError, Field};
use crate::iproto::auth::{CHAP_SHA1, PAP_SHA256, Scramble};
use crate::iproto::constants::key;
use crate::iproto::decode::{Body, PacketError};
use crate::iproto::mp::{self, Reader};

/// What a CALL or an EVAL says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named<'a> {
    /// The name of the function, or the expression.
    pub name: &'a [u8],
    /// The arguments: one MessagePack array.
    pub args: &'a [u8],
    /// The formats of the tuples among them, a MessagePack map, if there are any.
    pub formats: Option<&'a [u8]>,
}

/// Reads a CALL or an EVAL. Most bodies have the two keys and perhaps an empty map of tuple formats; the others are read
/// the slow way.
///
/// # Errors
/// [`PacketError`], as Tarantool words it for the type.
pub fn named(kind: u32, name_key: u8, body: &[u8]) -> Result<Named<'_>, PacketError> {
    if let Some(found) = quick(name_key, body) {
        return Ok(found);
    }
    slowly(kind, name_key, body)
}

fn slowly(kind: u32, name_key: u8, body: &[u8]) -> Result<Named<'_>, PacketError> {
    let parsed = Body::of_request(kind, body)?;
    Ok(Named {
        name: parsed.str(name_key).unwrap_or_default(),
        args: parsed.raw(key::TUPLE).unwrap_or(&[0x90]),
        formats: parsed.raw(key::TUPLE_FORMATS).filter(|formats| *formats != [0x80]),
    })
}

fn quick(name_key: u8, body: &[u8]) -> Option<Named<'_>> {
    let (first, rest) = body.split_first()?;
    if !matches!(first, 0x82 | 0x83) || *rest.first()? != name_key {
        return None;
    }
    let mut reader = Reader::at(body, 2);
    let name = reader.read_str().ok()?;
    if *reader.rest().first()? != key::TUPLE {
        return None;
    }
    let mut reader = Reader::at(body, reader.position() + 1);
    if reader.peek().ok()? != mp::Family::Array {
        return None;
    }
    let args = reader.raw().ok()?;
    if *first == 0x83 && !reader.rest().starts_with(&[key::TUPLE_FORMATS, 0x80]) {
        return None;
    }
    Some(Named { name, args, formats: None })
}

/// What an AUTH request proves itself with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof<'a> {
    /// Nothing: it asks to be guest again.
    Guest,
    /// The answer to the salt.
    Chap(&'a Scramble),
    /// The password.
    Pap(&'a [u8]),
}

/// What an AUTH request proves itself with; a password is taken over TLS only.
///
/// # Errors
/// Tarantool's.
pub fn proof<'a>(body: &Body<'a>, guest: bool, secure: bool) -> Result<Proof<'a>, BoxError> {
    let broken = || BoxError::msgpack("authentication request body");
    let mut reader = Reader::new(body.raw(key::TUPLE).unwrap_or_default());
    let count = reader.read_array().map_err(|_| broken())?;
    if count == 0 && guest {
        return Ok(Proof::Guest);
    }
    if count < 2 {
        return Err(broken());
    }
    let method = reader.read_str().map_err(|_| broken())?;
    if method == PAP_SHA256.as_bytes() {
        return password(reader, secure);
    }
    if method != CHAP_SHA1.as_bytes() {
        let method = String::from_utf8_lossy(method);
        let refused = BoxError::client(error::UNKNOWN_AUTH_METHOD, format!("Unknown authentication method '{method}'"));
        return Err(refused.with("value", Field::Str(&method)));
    }
    let invalid = |what: &str| {
        BoxError::client(error::INVALID_AUTH_REQUEST, format!("Invalid '{CHAP_SHA1}' request: {what}"))
            .with("auth_method", Field::Str(CHAP_SHA1))
            .with("details", Field::Str(what))
    };
    let answer = match reader.peek() {
        Ok(mp::Family::Str) => reader.read_str(),
        Ok(mp::Family::Bin) => reader.read_bin(),
        _ => return Err(invalid("scramble must be string")),
    };
    let answer = answer.map_err(|_| broken())?;
    answer.try_into().map(Proof::Chap).map_err(|_| invalid("invalid scramble size"))
}

fn password(mut reader: Reader<'_>, secure: bool) -> Result<Proof<'_>, BoxError> {
    if !secure {
        let text = format!("Authentication method '{PAP_SHA256}' does not support unencrypted connection");
        return Err(BoxError::client(error::UNSUPPORTED, text));
    }
    let password = match reader.peek() {
        Ok(mp::Family::Str) => reader.read_str(),
        Ok(mp::Family::Bin) => reader.read_bin(),
        _ => {
            let details = "password must be string";
            let text = format!("Invalid '{PAP_SHA256}' request: {details}");
            let refused = BoxError::client(error::INVALID_AUTH_REQUEST, text);
            return Err(refused.with("auth_method", Field::Str(PAP_SHA256)).with("details", Field::Str(details)));
        }
    };
    password.map(Proof::Pap).map_err(|_| BoxError::msgpack("authentication request body"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::iproto::constants::kind;
    use proptest::prelude::*;

    /// What both ways must agree on.
    fn agree(body: &[u8]) -> std::result::Result<(), TestCaseError> {
        for (kind, name_key) in [(kind::CALL, key::FUNCTION_NAME), (kind::EVAL, key::EXPR)] {
            if let Some(found) = quick(name_key, body) {
                prop_assert_eq!(slowly(kind, name_key, body), Ok(found));
            }
        }
        Ok(())
    }

    #[test]
    fn tuple_formats_are_passed_on() {
        let body = [0x83, 0x22, 0xa1, b'f', 0x21, 0x90, 0x60, 0x81, 5, 0x90];
        let formats = Some(&[0x81, 5, 0x90][..]);
        assert_eq!(named(kind::CALL, key::FUNCTION_NAME, &body), Ok(Named { formats, ..plain(&[0x90]) }));
    }

    /// What the bodies below say, with these arguments.
    fn plain(args: &[u8]) -> Named<'_> {
        Named { name: b"f", args, formats: None }
    }

    #[test]
    fn the_usual_forms_are_read_quickly() {
        let with = [0x82, 0x22, 0xa1, b'f', 0x21, 0x92, 1, 2];
        assert_eq!(quick(key::FUNCTION_NAME, &with), Some(plain(&[0x92, 1, 2])));
        let formats = [0x83, 0x22, 0xa1, b'f', 0x21, 0x90, 0x60, 0x80];
        assert_eq!(quick(key::FUNCTION_NAME, &formats), Some(plain(&[0x90])));
        assert_eq!(quick(key::EXPR, &with), None);
        // The other order, and no arguments, are read all the same.
        let turned = [0x82, 0x21, 0x91, 1, 0x22, 0xa1, b'f'];
        assert_eq!(named(kind::CALL, key::FUNCTION_NAME, &turned), Ok(plain(&[0x91, 1])));
        assert_eq!(named(kind::CALL, key::FUNCTION_NAME, &with[..4]), Err(PacketError::Body));
        assert_eq!(named(kind::CALL, key::FUNCTION_NAME, &[0x81, 0x22, 0xa1, b'f']), Ok(plain(&[0x90])));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn both_ways_agree_on_bodies_that_are_nearly_right(
            first in 0x80_u8..0x85,
            name in proptest::collection::vec(any::<u8>(), 0..40),
            args in proptest::collection::vec(0_u8..0x80, 0..15),
            tail in proptest::collection::vec(prop_oneof![Just(0x60_u8), Just(0x80), Just(0x22), any::<u8>()], 0..6),
        ) {
            for name_key in [key::FUNCTION_NAME, key::EXPR] {
                let mut body = vec![first, name_key];
                mp::put_str(&mut body, &name);
                body.push(key::TUPLE);
                mp::put_array(&mut body, args.len() as u32);
                body.extend(&args);
                body.extend(&tail);
                agree(&body)?;
            }
        }

        #[test]
        fn any_bytes_are_a_request_or_an_error(body in proptest::collection::vec(any::<u8>(), 0..60)) {
            agree(&body)?;
            let _ = named(kind::CALL, key::FUNCTION_NAME, &body);
            if let Ok(body) = Body::parse(&body) {
                let _ = proof(&body, true, true);
            }
        }
    }
}
