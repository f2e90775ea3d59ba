//! Bytes as a client would send them: framing, headers, bodies, calls, logins, and the statements of the space engine.
//!
//! Holds: no panic, no hang; every request that is understood is answered by one whole packet; now and then that what a
//! snapshot is taken of can be restored.

#![no_main]

use cord::iproto::decode::{self, Body, Frame, RequestHeader};
use cord::iproto::constants::{key, kind};
use cord::iproto::mp;
use cord::server::request;
use cord::server::engine::{Engine, IndexOptions, Limits, PartOptions, SpaceOptions, SpaceRef, Statement};
use libfuzzer_sys::fuzz_target;
use std::cell::RefCell;

thread_local! {
    /// Emptied after each input: making one takes longer than most inputs.
    static ENGINE: RefCell<Option<Engine>> = RefCell::new(engine());
}

fn engine() -> Option<Engine> {
    let mut engine = Engine::new();
    engine.set_limits(Limits { tuple: 1 << 12, memory: 1 << 16 });
    let (id, _) = engine.create_space("s", &SpaceOptions { id: Some(512), ..SpaceOptions::default() }).ok()?;
    let space = SpaceRef::Id(id);
    engine.create_index(space, "pk", &IndexOptions::default()).ok()?;
    let nullable = |field, kind| PartOptions { is_nullable: Some(true), ..PartOptions::new(field, kind) };
    let unique = IndexOptions { parts: vec![nullable(2, "scalar")], ..IndexOptions::default() };
    engine.create_index(space, "unique", &unique).ok()?;
    let parts = vec![PartOptions { collation: Some("unicode_ci".into()), ..nullable(3, "string") }];
    engine
        .create_index(space, "names", &IndexOptions { parts, unique: Some(false), ..IndexOptions::default() })
        .ok()?;
    Some(engine)
}

fuzz_target!(|data: &[u8]| {
    ENGINE.with_borrow_mut(|engine| run(engine.as_mut().expect("the schema is valid"), data));
});

fn run(engine: &mut Engine, data: &[u8]) {
    // Without an open transaction the engine changes tuples where they are.
    let txn = data.last().filter(|byte| **byte & 1 == 0).map(|_| engine.begin());
    let mut input = data;
    while let Ok(Frame::Packet { start, end }) = decode::frame(input, 1 << 20) {
        let packet = &input[start..end];
        input = &input[end..];
        let mut header = RequestHeader::default();
        let Ok(at) = decode::request_header(packet, &mut header) else { continue };
        for (kind, name_key) in [(kind::CALL, key::FUNCTION_NAME), (kind::EVAL, key::EXPR)] {
            if let Ok(request::Named { args, formats, .. }) = request::named(kind, name_key, &packet[at..]) {
                assert!(mp::Reader::new(args).read_array().is_ok());
                assert_eq!(mp::Reader::new(args).raw(), Ok(args));
                assert!(formats.is_none_or(|formats| mp::Reader::new(formats).read_map().is_ok()));
            }
        }
        let Ok(body) = Body::of_request(header.kind, &packet[at..]) else { continue };
        let _ = request::proof(&body, true, header.sync & 2 == 0);
        let Ok(Some(statement)) = Statement::from_body(header.kind, &body) else { continue };
        let mut out = Vec::new();
        let own = txn.filter(|_| header.stream_id != 0);
        if header.sync & 1 == 0 {
            engine.respond(&statement, own, header.sync, &mut out);
        } else {
            engine.respond_with_formats(&statement, own, header.sync, &mut out);
        }
        let Ok(Frame::Packet { end, .. }) = decode::frame(&out, u64::MAX) else { panic!("no packet") };
        assert_eq!(end, out.len());
    }
    if let Some(txn) = txn {
        let _ = engine.commit(txn);
    }
    if data.len() % 16 == 0 {
        assert!(Engine::restore(&engine.snapshot()).is_ok());
    }
    engine.truncate(SpaceRef::Id(512)).expect("the space is there");
    assert_eq!(engine.bytes_used(), 0);
}
