//! The authentication methods. `chap-sha1` proves a password without telling it; `pap-sha256` sends it as it is, over TLS
//! only, so that the server may keep a hash that is salted.
//!
//! ```text
//! client: h1 = sha1(password), h2 = sha1(h1), h3 = sha1(salt[0..20] .. h2), sends h1 xor h3
//! server: knows h2; h1' = sent xor h3; accepts when sha1(h1') == h2
//! ```
//!
//! Source: `src/lib/core/scramble.c`, `src/box/auth_chap_sha1.c` (3.9-dev). `pap-sha256` is of Tarantool Enterprise.

use super::greeting::SALT_USED;
use base64::Engine;
use sha1::{Digest, Sha1};
use sha2::Sha256;

/// Name of the method on the wire.
pub const CHAP_SHA1: &str = "chap-sha1";
/// Name of the method on the wire.
pub const PAP_SHA256: &str = "pap-sha256";
/// Bytes of a scramble.
pub const SCRAMBLE_SIZE: usize = 20;

/// A scramble or a hash.
pub type Scramble = [u8; SCRAMBLE_SIZE];

fn sha1(parts: &[&[u8]]) -> Scramble {
    let mut hash = Sha1::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().into()
}

fn xor(a: &Scramble, b: &Scramble) -> Scramble {
    let mut out = *a;
    out.iter_mut().zip(b).for_each(|(x, y)| *x ^= y);
    out
}

/// The hash of a password that a server keeps: `sha1(sha1(password))`.
pub fn password_hash(password: &[u8]) -> Scramble {
    sha1(&[&sha1(&[password])])
}

/// The hash of a password as `box.space._user` stores it: base64 of [`password_hash`].
pub fn password_hash_base64(password: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(password_hash(password))
}

/// What a client answers to a salt. An absent password is the empty one.
pub fn scramble(salt: &[u8; SALT_USED], password: &[u8]) -> Scramble {
    let h1 = sha1(&[password]);
    let h2 = sha1(&[&h1]);
    xor(&h1, &sha1(&[salt, &h2]))
}

/// Whether a client's answer proves the password whose [`password_hash`] is given. Takes the same time for every
/// wrong answer.
pub fn verify(salt: &[u8; SALT_USED], answer: &Scramble, hash: &Scramble) -> bool {
    let h1 = xor(answer, &sha1(&[salt, hash]));
    let difference = sha1(&[&h1]).iter().zip(hash).fold(0, |all, (a, b)| all | (a ^ b));
    difference == 0
}

/// The salted hash of a password that a server with `pap-sha256` keeps: `sha256(salt .. password)`.
pub fn salted_hash(salt: &[u8], password: &[u8]) -> [u8; 32] {
    Sha256::new().chain_update(salt).chain_update(password).finalize().into()
}

/// Whether a password has the [`salted_hash`]. Takes the same time for every wrong password of a length.
pub fn verify_password(salt: &[u8], password: &[u8], hash: &[u8; 32]) -> bool {
    let difference = salted_hash(salt, password).iter().zip(hash).fold(0, |all, (a, b)| all | (a ^ b));
    difference == 0
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_stored_hash_is_tarantools() {
        // box.schema.user.password('') and box.schema.user.password('s3cret') of Tarantool 2.6.
        assert_eq!(password_hash_base64(b""), "vhvewKp0tNyweZQ+cFKAlsyphfg=");
        assert_eq!(password_hash_base64(b"s3cret"), "uGXK6PNA9s4UhaBvRJK7SXGN8ew=");
    }

    #[test]
    fn a_salted_hash_is_sha256_of_salt_and_password() {
        // printf 'saltsecret' | sha256sum
        let hash = salted_hash(b"salt", b"secret");
        let text: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "bede90386d450cea8b77b822f8887065e4e5abf132c2f9dccfcc7fbd4cba5e35");
        assert!(verify_password(b"salt", b"secret", &hash));
        assert!(!verify_password(b"salt", b"Secret", &hash));
        assert!(!verify_password(b"salz", b"secret", &hash));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(50))]

        #[test]
        fn the_right_password_passes_and_no_other(salt in any::<[u8; 20]>(), password: Vec<u8>, other: Vec<u8>) {
            let answer = scramble(&salt, &password);
            prop_assert!(verify(&salt, &answer, &password_hash(&password)));
            prop_assume!(password != other);
            prop_assert!(!verify(&salt, &answer, &password_hash(&other)));
        }
    }
}
