//! Cost of one statement on the space engine: `cargo bench --no-default-features --bench engine`.

#![allow(clippy::expect_used)]

use cord::server::engine::*;
use std::hint::black_box;
use std::time::Instant;

const COUNT: u32 = 200_000;

fn tuple(id: u32, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&[0x93, 0xce]);
    out.extend_from_slice(&id.to_be_bytes());
    out.extend_from_slice(b"\xaasome value\x07");
}

fn report(name: &str, start: Instant) {
    let nanoseconds = start.elapsed().as_nanos() as f64 / f64::from(COUNT);
    println!("{name:<44} {nanoseconds:>8.0} ns");
}

/// Visits all ids once, far from each other.
fn ids() -> impl Iterator<Item = u32> {
    (0..COUNT).map(|n| n.wrapping_mul(77_777) % COUNT)
}

fn main() {
    let mut engine = Engine::new();
    let (id, _) = engine.create_space("bench", &SpaceOptions::default()).expect("a fresh name");
    let space = SpaceRef::Id(id);
    engine.create_index(space, "pk", &IndexOptions::default()).expect("a fresh index");
    let (mut out, mut row, mut key) = (Vec::new(), Vec::new(), vec![0x91, 0xce, 0, 0, 0, 0]);
    let mut execute = |engine: &mut Engine, statement: &Statement<'_>| {
        out.clear();
        engine.execute(statement, None, &mut out).expect("a valid statement");
        black_box(&out);
    };
    for round in ["REPLACE, new", "REPLACE, present", "REPLACE, present, secondary index"] {
        if round.ends_with("index") {
            let parts = vec![PartOptions::new(2, "string"), PartOptions::new(3, "unsigned")];
            let options = IndexOptions { parts, unique: Some(false), ..IndexOptions::default() };
            engine.create_index(space, "sk", &options).expect("a fresh index");
        }
        let start = Instant::now();
        for id in ids() {
            tuple(id, &mut row);
            execute(&mut engine, &Statement::Replace { space, tuple: &row });
        }
        report(round, start);
    }
    let start = Instant::now();
    for id in ids() {
        key[2..].copy_from_slice(&id.to_be_bytes());
        let select = Select {
            space,
            index: IndexRef::Id(0),
            iterator: 0,
            offset: 0,
            limit: 2,
            key: &key,
            after: None,
            fetch_position: false,
        };
        execute(&mut engine, &Statement::Select(select));
    }
    report("SELECT by primary key", start);
    let ops = b"\x91\x93\xa1+\x03\x01";
    let start = Instant::now();
    for id in ids() {
        key[2..].copy_from_slice(&id.to_be_bytes());
        execute(&mut engine, &Statement::Update { space, index: IndexRef::Id(0), key: &key, ops, base: 1 });
    }
    report("UPDATE +1", start);
    let start = Instant::now();
    let mut bytes = Vec::new();
    for _ in 0..COUNT / 1000 {
        bytes.clear();
        let select = Select {
            space,
            index: IndexRef::Id(0),
            iterator: 2,
            offset: 0,
            limit: 1000,
            key: &[0x90],
            after: None,
            fetch_position: false,
        };
        engine.select(&select, None, &mut bytes).expect("a valid statement");
        black_box(&bytes);
    }
    report("SELECT of 1000, a tuple", start);
    let start = Instant::now();
    for id in ids() {
        key[2..].copy_from_slice(&id.to_be_bytes());
        execute(&mut engine, &Statement::Delete { space, index: IndexRef::Id(0), key: &key });
    }
    report("DELETE", start);
}
