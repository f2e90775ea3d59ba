//! Bytes as the contents of a snapshot with the right checksum: an engine that can be saved again, or an error.

#![no_main]

use cord::server::engine::Engine;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut bytes = b"cord snapshot 1\n".to_vec();
    bytes.extend_from_slice(data);
    let sum = crc32(&bytes);
    bytes.extend_from_slice(&sum.to_be_bytes());
    if let Ok(engine) = Engine::restore(&bytes) {
        let again = Engine::restore(&engine.snapshot());
        assert_eq!(again.map(|e| e.bytes_used()).ok(), Some(engine.bytes_used()));
    }
});

/// The checksum bit by bit: slow, and independent of the one under test.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| if sum & 1 == 1 { (sum >> 1) ^ 0xedb8_8320 } else { sum >> 1 })
    })
}
