//! Cost of one statement on the space engine, in CPU time of the thread, the best of some rounds:
//! `cargo bench --no-default-features --bench engine`.

#![allow(clippy::expect_used)]

use cord::server::engine::*;
use std::hint::black_box;

const COUNT: u32 = 200_000;
const ROUNDS: u32 = 5;
const SPACE: SpaceRef<'static> = SpaceRef::Id(512);
const PRIMARY: IndexRef<'static> = IndexRef::Id(0);

/// CPU time of this thread in nanoseconds: other programs' load does not count, only what they do to the caches.
fn now() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

fn tuple(id: u32, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0x93, 0xce]);
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(b"\xaasome value\x07");
}

fn key(id: u32) -> [u8; 6] {
    let [a, b, c, d] = id.to_be_bytes();
    [0x91, 0xce, a, b, c, d]
}

fn select(key: &[u8], limit: u64) -> Select<'_> {
    let iterator = if key.len() > 1 { IteratorType::Eq } else { IteratorType::All };
    Select {
        space: SPACE,
        index: PRIMARY,
        iterator: iterator as u64,
        offset: 0,
        limit,
        key,
        after: None,
        fetch_position: false,
    }
}

/// Runs `each` for all ids, which lie far from each other, and gives nanoseconds an id.
fn pass(engine: &mut Engine, mut each: impl FnMut(&mut Engine, u32, &mut Vec<u8>)) -> f64 {
    let mut out = Vec::new();
    let start = now();
    for n in 0..COUNT {
        out.clear();
        each(engine, n.wrapping_mul(77_777) % COUNT, &mut out);
        black_box(&out);
    }
    (now() - start) / f64::from(COUNT)
}

fn replace(engine: &mut Engine, id: u32, out: &mut Vec<u8>) {
    let mut row = Vec::with_capacity(32);
    tuple(id, &mut row);
    engine.execute(&Statement::Replace { space: SPACE, tuple: &row }, None, out).expect("a valid statement");
}

fn one(engine: &mut Engine, id: u32, out: &mut Vec<u8>) {
    engine.execute(&Statement::Select(select(&key(id), 2)), None, out).expect("a valid statement");
}

fn update(engine: &mut Engine, id: u32, out: &mut Vec<u8>) {
    let update =
        Statement::Update { space: SPACE, index: PRIMARY, key: &key(id), ops: b"\x91\x93\xa1+\x03\x01", base: 1 };
    engine.execute(&update, None, out).expect("a valid statement");
}

fn upsert(engine: &mut Engine, id: u32, out: &mut Vec<u8>) {
    let mut row = Vec::with_capacity(32);
    tuple(id, &mut row);
    let upsert = Statement::Upsert { space: SPACE, tuple: &row, ops: b"\x91\x93\xa1+\x03\x01", base: 1 };
    engine.execute(&upsert, None, out).expect("a valid statement");
}

fn assign(engine: &mut Engine, id: u32, out: &mut Vec<u8>) {
    let ops = b"\x92\x93\xa1=\x02\xa3bar\x93\xa1=\x03\xcd\x12\x34";
    let update = Statement::Update { space: SPACE, index: PRIMARY, key: &key(id), ops, base: 1 };
    engine.execute(&update, None, out).expect("a valid statement");
}

fn delete(engine: &mut Engine, id: u32, out: &mut Vec<u8>) {
    engine.execute(&Statement::Delete { space: SPACE, index: PRIMARY, key: &key(id) }, None, out).expect("valid");
}

fn many(engine: &mut Engine) -> f64 {
    let mut out = Vec::new();
    let start = now();
    for _ in 0..COUNT / 1000 {
        out.clear();
        engine.select(&select(&[0x90], 1000), None, &mut out).expect("a valid statement");
        black_box(&out);
    }
    (now() - start) / f64::from(COUNT)
}

/// All measurements of one round, each under its name.
fn round() -> Vec<(&'static str, f64)> {
    let mut engine = Engine::new();
    engine.create_space("bench", &SpaceOptions { id: Some(512), ..SpaceOptions::default() }).expect("a fresh name");
    engine.create_index(SPACE, "pk", &IndexOptions::default()).expect("a fresh index");
    let mut results = vec![
        ("REPLACE, new", pass(&mut engine, replace)),
        ("REPLACE, present", pass(&mut engine, replace)),
        ("SELECT by primary key", pass(&mut engine, one)),
        ("UPDATE +1", pass(&mut engine, update)),
        ("UPDATE, two assignments", pass(&mut engine, assign)),
        ("UPSERT +1, present", pass(&mut engine, upsert)),
        ("SELECT of 1000, a tuple", many(&mut engine)),
    ];
    let parts = vec![PartOptions::new(2, "string"), PartOptions::new(3, "unsigned")];
    let options = IndexOptions { parts, unique: Some(false), ..IndexOptions::default() };
    engine.create_index(SPACE, "sk", &options).expect("a fresh index");
    results.push(("REPLACE, a secondary index of two parts", pass(&mut engine, replace)));
    results.push(("UPDATE +1 of a part of it", pass(&mut engine, update)));
    results.push(("DELETE from both", pass(&mut engine, delete)));
    results
}

fn main() {
    let rounds: Vec<_> = (0..ROUNDS).map(|_| round()).collect();
    for (n, (name, _)) in rounds.first().into_iter().flatten().enumerate() {
        let best = rounds.iter().filter_map(|r| r.get(n)).map(|(_, ns)| *ns).fold(f64::INFINITY, f64::min);
        println!("{name:<42} {best:>7.0} ns");
    }
}
