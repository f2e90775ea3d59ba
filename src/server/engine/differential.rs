//! Random requests to a real Tarantool and to the engine, which must answer alike.
//!
//! Runs where `tarantool` (or what `TARANTOOL` names) is found; Debian's 2.6 words some errors otherwise and refuses some
//! updates that newer versions accept, which is told apart below.

use super::tests::{Random, mp};
use super::*;
use crate::iproto::constants::{key, kind};
use crate::iproto::decode::{self, Body, Frame};
use crate::iproto::encode::{self, Header};
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The definitions, as options of the spaces and of their indexes.
const SPACES: [(u32, &str, &[&str]); 6] = [
    (
        600,
        "{}",
        &[
            r#"{"parts": [[1, "unsigned"]]}"#,
            r#"{"parts": [{"field": 2, "type": "string", "is_nullable": true}]}"#,
            r#"{"parts": [{"field": 3, "type": "scalar", "is_nullable": true}], "unique": false}"#,
        ],
    ),
    (
        601,
        "{}",
        &[
            r#"{"parts": [[1, "integer"], [2, "string"]]}"#,
            r#"{"parts": [[3, "number"]], "unique": false}"#,
            r#"{"parts": [[3, "number"], [1, "integer"]], "unique": false}"#,
        ],
    ),
    (602, "{}", &[r#"{"type": "HASH", "parts": [[2, "string"]]}"#]),
    (
        603,
        r#"{"format": [["id", "unsigned"], ["name", "string"], {"name": "any", "type": "any", "is_nullable": true}]}"#,
        &[
            r#"{"parts": [[1, "unsigned"]]}"#,
            r#"{"parts": [{"field": 2, "type": "string", "collation": "unicode_ci"}], "unique": false}"#,
            r#"{"parts": [{"field": 2, "type": "string", "collation": "unicode"}], "unique": false}"#,
        ],
    ),
    (
        605,
        "{}",
        &[
            r#"{"parts": [[1, "scalar"]]}"#,
            r#"{"parts": [{"field": 2, "type": "double", "is_nullable": true}], "unique": false}"#,
            r#"{"parts": [{"field": 3, "type": "boolean", "is_nullable": true}], "unique": false}"#,
            r#"{"parts": [{"field": 4, "type": "uuid", "is_nullable": true}], "unique": true}"#,
            r#"{"parts": [{"field": 5, "type": "decimal", "is_nullable": true}], "unique": false}"#,
            r#"{"parts": [{"field": 6, "type": "varbinary", "is_nullable": true}], "unique": true}"#,
        ],
    ),
    (604, r#"{"field_count": 3}"#, &[r#"{"parts": [[3, "scalar"]]}"#, r#"{"parts": [[2, "string"], [3, "scalar"]]}"#]),
];

/// A running Tarantool, killed at the end.
struct Oracle {
    server: Child,
    directory: PathBuf,
    stream: UnixStream,
    sync: u64,
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

impl Oracle {
    fn start() -> Option<Oracle> {
        let directory = std::env::temp_dir().join(format!("cord-oracle-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let program = std::env::var("TARANTOOL").unwrap_or_else(|_| "tarantool".into());
        let script = "box.cfg{log = 'log', wal_mode = 'none'} \
                      box.schema.user.grant('guest', 'super', nil, nil, {if_not_exists = true}) \
                      box.cfg{listen = 'unix/:./socket'} \
                      require('fiber').sleep(1e9)";
        let mut command = Command::new(program);
        command.args(["-e", script]).current_dir(&directory).stdin(Stdio::null()).stdout(Stdio::null());
        let Ok(server) = command.stderr(Stdio::null()).spawn() else {
            let _ = std::fs::remove_dir_all(&directory);
            return None;
        };
        for _ in 0..200 {
            std::thread::sleep(Duration::from_millis(50));
            let Ok(mut stream) = UnixStream::connect(directory.join("socket")) else { continue };
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            stream.read_exact(&mut [0; 128]).unwrap();
            return Some(Oracle { server, directory, stream, sync: 0 });
        }
        panic!("tarantool does not listen: {:?}", std::fs::read_to_string(directory.join("log")));
    }

    /// Sends a request and returns its response.
    fn ask(&mut self, kind: u32, body: &[u8]) -> Answer {
        self.sync += 1;
        let mut packet = Vec::new();
        let mark = encode::begin(&mut packet, kind, &Header::new(self.sync));
        packet.extend_from_slice(body);
        encode::finish(&mut packet, mark);
        self.stream.write_all(&packet).unwrap();
        let mut answer = vec![0; 5];
        self.stream.read_exact(&mut answer).unwrap();
        let Ok(Frame::Incomplete(len)) = decode::frame(&answer, u64::MAX) else { panic!("{answer:x?}") };
        answer.resize(len, 0);
        self.stream.read_exact(&mut answer[5..]).unwrap();
        Answer::read(&answer)
    }

    fn eval(&mut self, text: &str) {
        let body = [&b"\x82\x27"[..], &mp(&format!(r#""{text}""#)), b"\x21\x90"].concat();
        let answer = self.ask(kind::EVAL, &body);
        assert!(answer.code == 0, "{text}: {answer:?}");
    }
}

#[derive(PartialEq)]
struct Answer {
    /// 0: success.
    code: u32,
    message: String,
    data: Vec<u8>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.code, self.message, super::show::tuple(&self.data))
    }
}

impl Answer {
    fn read(packet: &[u8]) -> Self {
        let Ok(Frame::Packet { start, end }) = decode::frame(packet, u64::MAX) else { panic!("{packet:x?}") };
        let (header, at) = decode::response_header(&packet[start..end]).unwrap();
        let body = Body::parse(&packet[start + at..end]).unwrap();
        let message = body.str(key::ERROR_24).map_or(String::new(), |s| String::from_utf8_lossy(s).into_owned());
        // Debian's server writes the length of DATA in five bytes, as we do.
        let data = body.raw(key::DATA).unwrap_or_default().to_vec();
        Answer { code: header.error_code().unwrap_or_default(), message, data }
    }

    fn of_engine(engine: &mut Engine, kind: u32, body: &[u8]) -> Self {
        let mut out = Vec::new();
        match Body::of_request(kind, body).map_err(BoxError::from).and_then(|b| Statement::from_body(kind, &b)) {
            Ok(Some(statement)) => engine.respond(&statement, None, 1, &mut out),
            Ok(None) => panic!("no statement"),
            Err(error) => error.respond(1, 1, &mut out),
        }
        Answer::read(&out)
    }
}

/// What the two versions word differently, brought to one form.
fn normal(mut answer: Answer) -> Answer {
    if matches!(answer.code, 1 | 3 | 23 | 39 | 94) {
        answer.message.clear();
    }
    // Newer versions look for missing fields first.
    if answer.code == 39 {
        answer.code = 23;
    }
    answer
}

/// Whether 2.6 refuses an update that newer versions make.
fn is_old_refusal(answer: &Answer) -> bool {
    let beyond = "Field ''[4]'' was not found in the tuple";
    answer.code == 37
        || answer.message == beyond
        || answer.message.contains("double update")
        || answer.message.contains("a string")
        || answer.message.contains("expected double")
}

/// A random value, of a kind that the field of that number often has.
fn value(random: &mut Random, field: u64) -> Vec<u8> {
    let strings = ["a", "A", "b", "ab", "Ab", "abc", "", "é", "É", "z", "10", "a-b", "a b"];
    let string = |random: &mut Random| mp(&format!(r#""{}""#, strings[random.below(13) as usize]));
    let integer = |random: &mut Random| match random.below(8) {
        0 => mp("-5"),
        1 => mp("9007199254740993"),
        2 => mp("18446744073709551615"),
        3 => mp("-9223372036854775808"),
        _ => mp(&random.below(8).to_string()),
    };
    let number = |random: &mut Random| match random.below(6) {
        0 => mp("1.5"),
        1 => mp("-0.0"),
        2 => mp("9007199254740992.0"),
        3 => [b"\xd5\x01\x01\x5c", b"\xd5\x01\x00\x3c"][random.below(2) as usize].to_vec(),
        4 => b"\xca\x3f\xc0\x00\x00".to_vec(),
        _ => integer(random),
    };
    match (field, random.below(12)) {
        (4.., 2..=9) => mp([
            r#"{"a": 1, "b": [1, "two", {"x": 3}], "c": {"d": "text"}}"#,
            r#"{"b": [], "a": "text", "a": 5}"#,
            r#"[1, "two", [3]]"#,
            r#"{"c": {}, "b": [1, 2, 3, 4], "x y": 7}"#,
        ][random.below(4) as usize]),
        (_, 0) => mp("null"),
        (_, 1) => mp(["true", "false", "[1]", r#"{"a": 1}"#][random.below(4) as usize]),
        (1, _) => integer(random),
        (2, _) => string(random),
        (_, 2) => b"\xc4\x01a".to_vec(),
        (_, 4..=6) => string(random),
        _ => number(random),
    }
}

/// A value of the space with a field of each type, now and then one that does not fit.
fn typed_value(random: &mut Random, field: u64) -> Vec<u8> {
    let low = random.below(5) as u8;
    // 2.6 takes no integers for doubles, and no UUIDs for scalars.
    let other = [3, 6, 8][random.below(3) as usize];
    let fitting = if random.below(6) == 0 { other } else { field };
    match fitting {
        1 => value(random, 3),
        2 => [&b"\xcb\x3f\xf0\0\0\0\0\0"[..], &[low]].concat(),
        3 => mp(["true", "false"][usize::from(low % 2)]),
        4 => [&b"\xd8\x02"[..], &[low; 16]].concat(),
        5 => vec![0xd5, 1, low, 0x1c],
        6 => vec![0xc4, 2, low, 0],
        7 => mp(&low.to_string()),
        _ => mp("null"),
    }
}

fn array(items: &[Vec<u8>]) -> Vec<u8> {
    let mut out = vec![0x90 | items.len() as u8];
    items.iter().for_each(|item| out.extend_from_slice(item));
    out
}

fn tuple(random: &mut Random, space: u64) -> Vec<u8> {
    if space == 4 {
        let fields = 3 + random.below(4);
        return array(&(1..=fields).map(|field| typed_value(random, field)).collect::<Vec<_>>());
    }
    let fields = 3 + random.below(4) - u64::from(random.below(20) == 0);
    array(&(1..=fields).map(|field| value(random, field)).collect::<Vec<_>>())
}

/// A key of up to as many parts as the index has, now and then of one more.
fn search_key(random: &mut Random, space: u64, parts: &[u64]) -> Vec<u8> {
    let value = if space == 4 { typed_value } else { value };
    let count = random.below(parts.len() as u64 + 1) + u64::from(random.below(10) == 0);
    let field = |n: u64| parts.get(n as usize).copied().unwrap_or(1);
    array(&(0..count).map(|n| value(random, field(n))).collect::<Vec<_>>())
}

/// One operation inside field 4 or 5, which often hold what such a path leads into.
fn nested_operation(random: &mut Random) -> Vec<u8> {
    let paths = [
        "[4].a",
        "[4].b[1]",
        "[4].b[2]",
        "[4].b[3]",
        "[4].b[4]",
        "[4].b[5]",
        "[4].c.d",
        "[4].c['d']",
        "[4].z",
        "[4].z.y",
        "[4]",
        "[4].a.b",
        "[4].b.x",
        "[4][1]",
        "[4][2]",
        "[5][1]",
        "[9].a",
        "[0]",
        "[4]['x y']",
        "[4][",
        "[4].",
        "[4].1",
        "[4][x]",
        "[4].b[",
        "[4].b[1",
        "[4]a",
        "[4].c['d",
        "[4].c['']",
        "x",
        "x.y",
        "[4].b[0]",
        "[4].a b",
        "",
        "[4].c..d",
        "[4].b[1]]",
    ];
    let path = paths[random.below(paths.len() as u64) as usize];
    let code = ["=", "=", "!", "!", "#", "#", "+", "-", "&", ":"][random.below(10) as usize];
    let mut items = vec![mp(&format!(r#""{code}""#)), mp(&format!(r#""{path}""#))];
    match code {
        ":" => items.extend([mp("1"), mp("1"), mp(r#""zz""#)]),
        "#" => items.push(mp(&random.below(4).to_string())),
        "=" | "!" => {
            let field = random.below(5) + 1;
            items.push(value(random, field));
        }
        _ => items.push(mp(&random.below(5).to_string())),
    }
    array(&[array(&items)])
}

fn operations(random: &mut Random, space: u64) -> Vec<u8> {
    if random.below(3) == 0 {
        return nested_operation(random);
    }
    // 2.6 changes each field once, and UPSERT hides that it did not.
    let mut fields = vec![1u64, 2, 3];
    let count = random.below(3) + 1;
    let mut operation = || {
        let field = fields.remove(random.below(fields.len() as u64) as usize);
        let code = ["=", "=", "+", "-", "&", "|", "^", ":", "?"][random.below(9) as usize];
        // Some fields may be binary, which 2.6 does not splice.
        let code = if code == ":" && (field == 3 || space == 4) { "+" } else { code };
        let from_end = count == 1 && code != ":" && random.below(3) == 0;
        let number = mp(&if from_end { field as i64 - 4 } else { field as i64 }.to_string());
        let mut items = vec![mp(&format!(r#""{code}""#)), number];
        match code {
            ":" => {
                items.push(mp(&(random.below(9) as i64 - 4).to_string()));
                items.push(mp(&(random.below(7) as i64 - 3).to_string()));
                items.push(value(random, 2));
            }
            "=" => items.push(value(random, field)),
            _ => {
                let like = [1, 1, 1, 3][random.below(4) as usize];
                items.push(value(random, like));
            }
        }
        array(&items)
    };
    let list: Vec<Vec<u8>> = (0..count).map(|_| operation()).collect();
    array(&list)
}

/// The fields of an index of [`SPACES`], by its position.
fn fields_of(space: u64, index: u64) -> &'static [u64] {
    match (space, index) {
        (0 | 3 | 4, 0) => &[1],
        (4, 1) => &[2],
        (4, 2) => &[3],
        (4, 3) => &[4],
        (4, 4) => &[5],
        (4, 5) => &[6],
        (0, 1) | (2, 0) | (3, _) => &[2],
        (0, 2) | (1, 1) | (5, 0) => &[3],
        (1, 0) => &[1, 2],
        (1, 2) => &[3, 1],
        (5, 1) => &[2, 3],
        _ => &[],
    }
}

fn request(random: &mut Random) -> (u32, Vec<u8>) {
    let space = random.below(6);
    let missing = u64::from(random.below(30) == 0);
    let index = random.below(SPACES[space as usize].2.len() as u64 + missing);
    let mut entries: Vec<(u8, Vec<u8>)> = vec![(key::SPACE_ID, mp(&SPACES[space as usize].0.to_string()))];
    let mut put = |key, value| entries.push((key, value));
    let kind = [kind::SELECT, kind::INSERT, kind::REPLACE, kind::REPLACE, kind::UPDATE, kind::UPSERT, kind::DELETE]
        [random.below(7) as usize];
    match kind {
        kind::SELECT => {
            put(key::INDEX_ID, mp(&index.to_string()));
            // The order of a hash is its own.
            let iterator = random.below(8);
            let is_scan = matches!(iterator, 2 | 6);
            put(key::ITERATOR, mp(&if space == 2 && is_scan { 0 } else { iterator }.to_string()));
            put(key::OFFSET, mp(&random.below(3).to_string()));
            put(key::LIMIT, mp(&[0, 3, 100][random.below(3) as usize].to_string()));
            put(key::KEY, search_key(random, space, fields_of(space, index)));
        }
        kind::INSERT | kind::REPLACE => put(key::TUPLE, tuple(random, space)),
        kind::UPSERT => {
            put(key::INDEX_BASE, mp("1"));
            put(key::TUPLE, tuple(random, space));
            // Beyond the end, which 2.6 refuses: UPSERT hides that.
            let beyond = mp(r#""[4]""#);
            let ops =
                std::iter::repeat_with(|| operations(random, space)).find(|ops| !ops.windows(4).any(|w| w == beyond));
            put(key::OPS, ops.unwrap());
        }
        _ => {
            put(key::INDEX_ID, mp(&index.to_string()));
            put(key::KEY, search_key(random, space, fields_of(space, index)));
            if kind == kind::UPDATE {
                put(key::INDEX_BASE, mp("1"));
                put(key::TUPLE, operations(random, space));
            }
        }
    }
    let mut body = vec![0x80 | entries.len() as u8];
    entries.into_iter().for_each(|(key, value)| {
        body.push(key);
        body.extend(value);
    });
    (kind, body)
}

fn create(engine: &mut Engine, oracle: &mut Oracle) {
    for (id, options, indexes) in SPACES {
        let name = format!("s{id}");
        let own = SpaceOptions { id: Some(id), ..SpaceOptions::from_msgpack(&mp(options)).unwrap() };
        engine.create_space(&name, &own).unwrap();
        // Single quotes stand for double ones, which the notation of these requests has no room for.
        let load = |text: &str| {
            let text = text.replace('"', "'");
            format!("local o = require('json').decode((string.gsub([=[{text}]=], string.char(39), string.char(34))))")
        };
        oracle.eval(&format!("{} o.id = {id} box.schema.space.create('{name}', o)", load(options)));
        for (n, text) in indexes.iter().enumerate() {
            let index = format!("i{n}");
            engine.create_index(SpaceRef::Id(id), &index, &IndexOptions::from_msgpack(&mp(text)).unwrap()).unwrap();
            oracle.eval(&format!("{} box.space.{name}:create_index('{index}', o)", load(text)));
        }
    }
}

#[test]
fn answers_as_tarantool_does() {
    let Some(mut oracle) = Oracle::start() else {
        eprintln!("tarantool was not found: nothing is compared");
        return;
    };
    let mut engine = Engine::new();
    create(&mut engine, &mut oracle);
    let rounds: u64 = std::env::var("DIFFERENTIAL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let seed = std::env::var("DIFFERENTIAL_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0x00c0_ffee);
    let mut random = Random(seed);
    let (mut successes, mut skipped) = (0, 0);
    let mut idle = None;
    for round in 0..rounds {
        // A transaction that has to do with nothing has the engine take the long way for everything.
        if round % 1000 == 0 {
            match idle.take() {
                Some(txn) => engine.rollback(txn),
                None => idle = Some(engine.begin()),
            }
        }
        let (kind, body) = request(&mut random);
        let theirs = oracle.ask(kind, &body);
        if matches!(kind, kind::UPDATE | kind::UPSERT) && is_old_refusal(&theirs) {
            skipped += 1;
            continue;
        }
        successes += u64::from(theirs.code == 0);
        let ours = Answer::of_engine(&mut engine, kind, &body);
        // Newer versions look at the iterator before the key.
        if ours.code == 112 && theirs.code != 0 {
            continue;
        }
        assert_eq!(normal(ours), normal(theirs), "request {round}, type {kind}: {}", super::show::tuple(&body));
        // UPSERT does not say what it did.
        if kind == kind::UPSERT {
            let space = Body::parse(&body).unwrap().uint(key::SPACE_ID).unwrap();
            let all = [b"\x84\x10", &mp(&space.to_string())[..], b"\x12\xcd\x03\xe8\x14\x02\x20\x90"].concat();
            let (ours, theirs) = (Answer::of_engine(&mut engine, 1, &all), oracle.ask(1, &all));
            assert!(space == 602 || ours == theirs, "{ours:?} {theirs:?} after {}", super::show::tuple(&body));
        }
    }
    assert!(successes > rounds / 4 && skipped < rounds / 10, "{successes} {skipped}");
}
