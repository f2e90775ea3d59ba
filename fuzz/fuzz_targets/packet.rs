//! Whatever a peer sends: framing, headers of both sides, bodies of every type, error stacks, the greeting.
#![no_main]

use cord::iproto::constants::{BODY_LEN_MAX, GREETING_SIZE};
use cord::iproto::decode::{self, Body, Frame, RequestHeader};
use cord::iproto::error::{self, ErrorBody, ErrorStack};
use cord::iproto::{encode, greeting};
use libfuzzer_sys::fuzz_target;

fn packet(packet: &[u8]) {
    let mut request = RequestHeader::default();
    let asked = decode::request_header(packet, &mut request);
    if let Ok((header, at)) = decode::response_header(packet) {
        assert!(at <= packet.len());
        assert_eq!(asked, Ok(at), "both sides read headers alike");
        assert_eq!((header.kind, header.sync), (request.kind, request.sync));
        let body = &packet[at..];
        let _ = decode::id_body(body);
        if let ErrorBody::Stack(stack) = error::decode_body(body) {
            let entries: Vec<_> = stack.map(|entry| entry.expect("it was checked")).collect();
            let mut out = Vec::new();
            error::encode_stack(&mut out, entries.iter().copied());
            let again: Vec<_> = ErrorStack::new(&out).expect("ours").map(|entry| entry.expect("ours")).collect();
            assert_eq!(entries, again);
        }
        for kind in [0, request.kind, request.kind % 80] {
            let _ = Body::of_request(kind, body);
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let mut rest = bytes;
    while let Ok(Frame::Packet { start, end }) = decode::frame(rest, BODY_LEN_MAX) {
        assert!(start <= end && end <= rest.len() && end > 0);
        packet(&rest[start..end]);
        rest = &rest[end..];
    }
    packet(bytes);
    if let Some(first) = bytes.first_chunk::<GREETING_SIZE>()
        && let Ok(read) = greeting::decode(first)
        && let Some(uuid) = read.uuid
    {
        let mut salt = [0; greeting::SALT_SIZE];
        salt[..greeting::SALT_USED].copy_from_slice(&read.salt);
        let written = greeting::encode("3.9.0", uuid, &salt);
        assert_eq!(greeting::decode(&written).expect("ours").salt, read.salt);
    }
    let mut out = Vec::new();
    encode::error(&mut out, 1, 1, 20, bytes);
    assert!(matches!(decode::frame(&out, u64::MAX), Ok(Frame::Packet { .. })));
});
