//! The engine as a whole: statements against answers recorded from Tarantool, transactions, and random changes against a
//! simple model.

use super::*;
use rmp::encode as put;
use std::collections::BTreeMap;

/// MessagePack of a value in the notation of JSON.
pub(super) fn mp(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    let rest = write(text.trim(), &mut out);
    assert_eq!(rest.trim(), "", "{text}");
    out
}

fn write<'a>(text: &'a str, out: &mut Vec<u8>) -> &'a str {
    let text = text.trim_start();
    match text.as_bytes()[0] {
        b'[' => write_items(&text[1..], ']', out),
        b'{' => write_items(&text[1..], '}', out),
        b'"' => {
            let end = text[1..].find('"').unwrap();
            put::write_str(out, &text[1..=end]).unwrap();
            &text[end + 2..]
        }
        _ => {
            let end = text.find([',', ']', '}', ':', ' ']).unwrap_or(text.len());
            match &text[..end] {
                "null" => put::write_nil(out).unwrap(),
                "true" => put::write_bool(out, true).unwrap(),
                "false" => put::write_bool(out, false).unwrap(),
                number if number.contains('.') => put::write_f64(out, number.parse().unwrap()).unwrap(),
                number if number.starts_with('-') => {
                    put::write_sint(out, number.parse().unwrap()).unwrap();
                }
                number => {
                    put::write_uint(out, number.parse().unwrap()).unwrap();
                }
            }
            &text[end..]
        }
    }
}

fn write_items<'a>(mut rest: &'a str, close: char, out: &mut Vec<u8>) -> &'a str {
    let (mut count, mut items) = (0, Vec::new());
    loop {
        rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(close) {
            let count = if close == ']' { count } else { count / 2 };
            if close == ']' {
                put::write_array_len(out, count).unwrap()
            } else {
                put::write_map_len(out, count).unwrap()
            };
            out.extend(items);
            return after;
        }
        rest = rest.strip_prefix([',', ':']).unwrap_or(rest);
        rest = write(rest, &mut items);
        count += 1;
    }
}

fn show(raw: &[u8]) -> String {
    super::show::tuple(raw)
}

const USERS: SpaceRef<'_> = SpaceRef::Id(700);
const PLAIN: SpaceRef<'_> = SpaceRef::Id(701);
const PRIMARY: IndexRef<'_> = IndexRef::Id(0);
const BY_NAME: IndexRef<'_> = IndexRef::Id(1);
const BY_AGE: IndexRef<'_> = IndexRef::Id(2);

/// The spaces that the recorded exchanges ran against.
fn engine() -> Engine {
    let mut engine = Engine::new();
    let format = r#"{"id": 700, "format": [["id", "unsigned"], ["name", "string"],
        {"name": "age", "type": "unsigned", "is_nullable": true}, {"name": "tags", "type": "array", "is_nullable": true}]}"#;
    engine.create_space("users", &SpaceOptions::from_msgpack(&mp(format)).unwrap()).unwrap();
    let index = |text: &str| IndexOptions::from_msgpack(&mp(text)).unwrap();
    engine.create_index(USERS, "pk", &index("null")).unwrap();
    let by_name = r#"{"unique": false, "parts": [{"field": "name", "collation": "unicode_ci"}]}"#;
    engine.create_index(USERS, "by_name", &index(by_name)).unwrap();
    engine.create_index(USERS, "by_age", &index(r#"{"unique": false, "parts": ["age"]}"#)).unwrap();
    let options = SpaceOptions { id: Some(701), ..SpaceOptions::default() };
    engine.create_space("plain", &options).unwrap();
    engine.create_index(PLAIN, "pk", &index(r#"{"type": "HASH", "parts": [1, "string"]}"#)).unwrap();
    for n in 1..=10 {
        let tuple = format!(r#"[{n}, "user{n}", {}, ["a", "b"]]"#, n + 20);
        engine.insert(USERS, &mp(&tuple), None).unwrap();
    }
    engine
}

fn query<'a>(space: SpaceRef<'a>, index: IndexRef<'a>, iterator: IteratorType, key: &'a [u8]) -> Select<'a> {
    let limit = u64::from(u32::MAX);
    Select { space, index, iterator: iterator as u64, offset: 0, limit, key, after: None, fetch_position: false }
}

/// The tuples of a SELECT as text, and the position.
fn run(engine: &mut Engine, select: &Select<'_>, txn: Option<TxnId>) -> Result<(Vec<String>, String)> {
    let mut out = vec![0xff];
    let result = engine.select(select, txn, &mut out);
    if result.is_err() {
        assert_eq!(out, [0xff], "an error leaves the output alone");
    }
    result?;
    let mut rest = &out[1..];
    assert_eq!(rest[1], 0x30);
    let mut body = &rest[2..];
    let Some(super::mp::Value::Array(count)) = super::mp::next(&mut body) else { panic!("{rest:x?}") };
    let tuples = (0..count).map(|_| show(super::mp::take(&mut body).unwrap())).collect();
    let mut position = String::new();
    if rest[0] == 0x82 {
        assert_eq!(body[0], 0x35);
        let Some((super::mp::Value::Str(s), len)) = super::mp::read(&body[1..]) else { panic!("{body:x?}") };
        position = String::from_utf8(s.to_vec()).unwrap();
        body = &body[1 + len..];
    }
    rest = body;
    assert!(rest.is_empty());
    Ok((tuples, position))
}

fn ids(engine: &mut Engine, index: IndexRef<'_>, iterator: IteratorType, key: &str, txn: Option<TxnId>) -> Vec<String> {
    let key = mp(key);
    let (tuples, _) = run(engine, &query(USERS, index, iterator, &key), txn).unwrap();
    tuples.into_iter().map(|t| t.trim_start_matches('[').split(',').next().unwrap().to_string()).collect()
}

/// Code and message of the error of one statement.
fn refused(engine: &mut Engine, statement: Statement<'_>) -> (u32, String) {
    let before = engine.snapshot();
    let error = engine.execute(&statement, None, &mut Vec::new()).unwrap_err();
    assert_eq!(engine.snapshot(), before, "a refused statement changes nothing");
    (error.code, error.message)
}

#[test]
fn selects_as_recorded() {
    let mut engine = engine();
    let mut select = |select: Select<'_>| run(&mut engine, &select, None).unwrap();
    let key = mp("[3]");
    assert_eq!(select(query(USERS, PRIMARY, IteratorType::Eq, &key)).0, [r#"[3, "user3", 23, ["a", "b"]]"#]);
    let all = Select { offset: 2, limit: 2, ..query(USERS, PRIMARY, IteratorType::All, &[0x90]) };
    assert_eq!(select(all).0, [r#"[3, "user3", 23, ["a", "b"]]"#, r#"[4, "user4", 24, ["a", "b"]]"#]);
    let key = mp(r#"["USER4"]"#);
    let by_name = query(SpaceRef::Name(b"users"), IndexRef::Name(b"by_name"), IteratorType::Eq, &key);
    assert_eq!(select(by_name).0, [r#"[4, "user4", 24, ["a", "b"]]"#]);
}

#[test]
fn tuples_with_formats_as_recorded() {
    let mut engine = engine();
    let mut execute = |statement: Statement<'_>| {
        let mut out = Vec::new();
        engine.execute_with_formats(&statement, None, &mut out).unwrap();
        out
    };
    let tuple = mp(r#"[100, "x", 1]"#);
    let formats = mp(r#"{"700": [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"},
        {"name": "age", "type": "unsigned", "is_nullable": true}, {"name": "tags", "type": "array", "is_nullable": true}]}"#);
    // The key of the map is the number 700, which the notation above cannot write.
    let formats = [b"\x60\x81\xcd\x02\xbc", &formats[5..]].concat();
    let expected = [&b"\x82\x30\xdd\0\0\0\x01\xd7\x07\xcd\x02\xbc\x93\x64\xa1x"[..], b"\x01", &formats].concat();
    let out = execute(Statement::Replace { space: USERS, tuple: &tuple });
    assert_eq!(out, expected);
    let key = mp("[555]");
    let nothing = b"\x82\x30\xdd\0\0\0\0\x60\x80";
    assert_eq!(execute(Statement::Delete { space: USERS, index: PRIMARY, key: &key }), nothing);
    let page = Select { limit: 1, fetch_position: true, ..query(USERS, PRIMARY, IteratorType::All, &[0x90]) };
    let out = execute(Statement::Select(page));
    assert_eq!((out[0], super::mp::skip(&out)), (0x83, Some(out.len())));
}

#[test]
fn pages_as_recorded() {
    let mut engine = engine();
    let page = Select { limit: 3, fetch_position: true, ..query(USERS, PRIMARY, IteratorType::All, &[0x90]) };
    let (tuples, position) = run(&mut engine, &page, None).unwrap();
    assert_eq!((tuples.len(), position.as_str()), (3, "kQM"));
    let (tuples, position) = run(&mut engine, &Select { after: Some(After::Position(b"kQM")), ..page }, None).unwrap();
    assert!(tuples[0].starts_with("[4,"));
    assert_eq!(position, "kQY");
    let tuple = mp(r#"[5, "user5"]"#);
    let (tuples, _) = run(&mut engine, &Select { after: Some(After::Tuple(&tuple)), ..page }, None).unwrap();
    assert!(tuples[0].starts_with("[6,"));
    let (tuples, position) = run(&mut engine, &Select { after: Some(After::Position(b"kQo")), ..page }, None).unwrap();
    assert_eq!((tuples.len(), position.as_str()), (0, ""));
}

#[test]
fn pages_visit_everything_once_in_every_order() {
    let mut engine = engine();
    for n in 11..=30 {
        engine
            .insert(USERS, &mp(&format!(r#"[{n}, "same", {}]"#, if n % 3 == 0 { "null" } else { "7" })), None)
            .unwrap();
    }
    for (index, iterator) in [
        (PRIMARY, IteratorType::All),
        (PRIMARY, IteratorType::Le),
        (BY_NAME, IteratorType::Ge),
        (BY_NAME, IteratorType::Req),
        (BY_AGE, IteratorType::All),
        (BY_AGE, IteratorType::Lt),
    ] {
        let whole = ids(&mut engine, index, iterator, "[]", None);
        assert_eq!(whole.len(), 30);
        let (mut pages, mut position) = (Vec::new(), String::new());
        loop {
            let after = Some(After::Position(position.as_bytes()));
            let page = Select { limit: 4, fetch_position: true, after, ..query(USERS, index, iterator, &[0x90]) };
            let (tuples, next) = run(&mut engine, &page, None).unwrap();
            if tuples.is_empty() {
                break;
            }
            pages.extend(tuples.into_iter().map(|t| t[1..].split(',').next().unwrap().to_string()));
            position = next;
        }
        assert_eq!(pages, whole);
    }
}

#[test]
fn positions_are_checked() {
    let mut engine = engine();
    let (invalid, of_string, empty) = ("Iterator position is invalid", mp(r#"["x"]"#), mp("[]"));
    let key = mp("[5]");
    let mut message = |iterator, after, key: &[u8]| {
        let select = Select { after: Some(after), ..query(USERS, PRIMARY, iterator, key) };
        run(&mut engine, &select, None).unwrap_err().message
    };
    assert_eq!(message(IteratorType::Ge, After::Position(b"kQM"), &key), invalid);
    assert_eq!(message(IteratorType::Eq, After::Position(b"kQo"), &key), invalid);
    assert_eq!(message(IteratorType::Le, After::Position(b"kQo"), &key), invalid);
    assert_eq!(message(IteratorType::All, After::Position(b"!"), &[0x90]), invalid);
    assert_eq!(message(IteratorType::All, After::Position(b"kQ"), &[0x90]), invalid);
    assert_eq!(message(IteratorType::All, After::Tuple(&of_string), &[0x90]), invalid);
    assert_eq!(message(IteratorType::All, After::Tuple(&empty), &[0x90]), invalid);
}

#[test]
fn every_iterator_of_a_tree() {
    let mut engine = engine();
    let mut ids = |iterator, key: &str| ids(&mut engine, PRIMARY, iterator, key, None).join(" ");
    use IteratorType::*;
    assert_eq!(ids(Eq, "[3]"), "3");
    assert_eq!(ids(Req, "[3]"), "3");
    assert_eq!(ids(Req, "[]"), "10 9 8 7 6 5 4 3 2 1");
    assert_eq!(ids(Lt, "[3]"), "2 1");
    assert_eq!(ids(Le, "[3]"), "3 2 1");
    assert_eq!(ids(Ge, "[8]"), "8 9 10");
    assert_eq!(ids(Gt, "[8]"), "9 10");
    assert_eq!(ids(All, "[9]"), "9 10");
    assert_eq!(ids(Gt, "[]"), "1 2 3 4 5 6 7 8 9 10");
    assert_eq!(ids(Lt, "[]"), "10 9 8 7 6 5 4 3 2 1");
    assert_eq!(ids(Eq, "[11]"), "");
    assert_eq!(ids(NextPrefix, "[8]"), "9 10");
    assert_eq!(ids(PreviousPrefix, "[3]"), "2 1");
}

#[test]
fn prefix_iterators_jump_over_strings() {
    let mut engine = Engine::new();
    let (id, _) = engine.create_space("s", &SpaceOptions::default()).unwrap();
    let parts = vec![PartOptions::new(1, "string")];
    engine.create_index(SpaceRef::Id(id), "pk", &IndexOptions { parts, ..IndexOptions::default() }).unwrap();
    for s in ["a", "ab", "abc", "abd", "ac", "b"] {
        engine.insert(SpaceRef::Id(id), &mp(&format!(r#"["{s}"]"#)), None).unwrap();
    }
    let mut strings = |iterator, key: &str| {
        run(&mut engine, &query(SpaceRef::Id(id), PRIMARY, iterator, &mp(key)), None).unwrap().0.join(" ")
    };
    assert_eq!(strings(IteratorType::NextPrefix, r#"["ab"]"#), r#"["ac"] ["b"]"#);
    assert_eq!(strings(IteratorType::PreviousPrefix, r#"["ab"]"#), r#"["a"]"#);
    assert_eq!(strings(IteratorType::NextPrefix, r#"[""]"#), "");
}

#[test]
fn errors_of_select_as_recorded() {
    let mut engine = engine();
    let key = mp(r#"["x"]"#);
    let base = query(USERS, PRIMARY, IteratorType::All, &[0x90]);
    let mut message = |select: Select<'_>| {
        let error = run(&mut engine, &select, None).unwrap_err();
        (error.code, error.message)
    };
    assert_eq!(message(Select { iterator: 99, ..base }), (1, "Invalid iterator type".into()));
    assert_eq!(message(Select { space: SpaceRef::Id(9999), ..base }), (36, "Space '9999' does not exist".into()));
    assert_eq!(message(Select { space: SpaceRef::Name(b"nope"), ..base }), (36, "Space 'nope' does not exist".into()));
    assert_eq!(
        message(Select { index: IndexRef::Id(9), ..base }),
        (35, "No index #9 is defined in space 'users'".into())
    );
    let index = IndexRef::Name(b"nope");
    assert_eq!(message(Select { index, ..base }), (148, "No index 'nope' is defined in space 'users'".into()));
    let text = "Supplied key type of part 0 does not match index part type: expected unsigned";
    assert_eq!(message(query(USERS, PRIMARY, IteratorType::Eq, &key)), (18, text.into()));
    let text = "Index 'pk' (HASH) of space 'plain' (memtx) does not support requested iterator type";
    assert_eq!(message(query(PLAIN, PRIMARY, IteratorType::Ge, &key)), (112, text.into()));
    let key = mp("[1, 2]");
    let text = "Invalid key part count (expected [0..1], got 2)";
    assert_eq!(message(query(USERS, PRIMARY, IteratorType::Eq, &key)), (31, text.into()));
    let text = "HASH index  does not support selects via a partial key (expected 1 parts, got 0). \
                Please Consider changing index type to TREE.";
    assert_eq!(message(query(PLAIN, PRIMARY, IteratorType::Eq, &[0x90])), (136, text.into()));
    let text = "Index 'pk' (HASH) of space 'plain' (memtx) does not support pagination";
    let paged = Select { fetch_position: true, ..query(PLAIN, PRIMARY, IteratorType::All, &[0x90]) };
    assert_eq!(message(paged), (112, text.into()));
    let text =
        "Index 'by_name' (TREE) of space 'users' (memtx) does not support requested iterator type along with collation";
    let key = mp(r#"["x"]"#);
    assert_eq!(message(query(USERS, BY_NAME, IteratorType::NextPrefix, &key)), (112, text.into()));
    assert_eq!(
        message(query(USERS, PRIMARY, IteratorType::Eq, b"\x01")),
        (22, "Tuple/Key must be MsgPack array".into())
    );
}

#[test]
fn payloads_as_recorded() {
    let mut engine = engine();
    let key = mp(r#"["x"]"#);
    let error = run(&mut engine, &query(USERS, PRIMARY, IteratorType::Eq, &key), None).unwrap_err();
    let fields: Vec<(&str, String)> = error.fields.iter().map(|(n, v)| (*n, show(v))).collect();
    let expected = [
        ("name", r#""KEY_PART_TYPE""#),
        ("partno", "0"),
        ("expected", r#""unsigned""#),
        ("index", r#""pk""#),
        ("index_id", "0"),
        ("space", r#""users""#),
        ("space_id", "700"),
        ("key", r#"["x"]"#),
    ];
    assert_eq!(fields, expected.map(|(n, v)| (n, v.to_string())));
    let error = engine.insert(USERS, &mp(r#"["a", "new"]"#), None).unwrap_err();
    let names: Vec<&str> = error.fields.iter().map(|(n, _)| *n).collect();
    assert_eq!(names, ["name", "field", "expected", "actual", "tuple", "space", "space_id"]);
    let ops = mp(r#"[["?", 3, 1]]"#);
    let error = engine.update(USERS, PRIMARY, &mp("[1]"), &ops, 1, None).unwrap_err();
    let names: Vec<&str> = error.fields.iter().map(|(n, _)| *n).collect();
    assert_eq!(names, ["name", "argno", "operation", "ops", "index", "index_id", "space", "space_id"]);
}

#[test]
fn changes_as_recorded() {
    let mut engine = engine();
    let mut execute = |statement: Statement<'_>| {
        let mut out = Vec::new();
        engine.execute(&statement, None, &mut out).unwrap();
        assert_eq!(out[..3], [0x81, 0x30, 0xdd]);
        show(&out[2..])
    };
    let tuple = mp(r#"[100, "new", null, []]"#);
    assert_eq!(execute(Statement::Insert { space: USERS, tuple: &tuple }), r#"[[100, "new", null, []]]"#);
    let tuple = mp(r#"[100, "newer", 33]"#);
    assert_eq!(execute(Statement::Replace { space: USERS, tuple: &tuple }), r#"[[100, "newer", 33]]"#);
    let (key, ops) = (mp("[100]"), mp(r#"[["=", 2, "upd"], ["+", 3, 5]]"#));
    let update = Statement::Update { space: USERS, index: PRIMARY, key: &key, ops: &ops, base: 1 };
    assert_eq!(execute(update), r#"[[100, "upd", 38]]"#);
    let ops = mp(r#"[["=", "name", "upd2"], ["-", "age", 1]]"#);
    let update = Statement::Update { space: USERS, index: PRIMARY, key: &key, ops: &ops, base: 1 };
    assert_eq!(execute(update), r#"[[100, "upd2", 37]]"#);
    let missing = mp("[555]");
    let update = Statement::Update { space: USERS, index: PRIMARY, key: &missing, ops: &ops, base: 1 };
    assert_eq!(execute(update), "[]");
    let (tuple, ops) = (mp(r#"[200, "ups", 1]"#), mp(r#"[["+", 3, 1]]"#));
    let upsert = Statement::Upsert { space: USERS, tuple: &tuple, ops: &ops, base: 1 };
    assert_eq!(execute(upsert), "[]");
    assert_eq!(execute(upsert), "[]");
    let key = mp("[200]");
    let delete = Statement::Delete { space: USERS, index: PRIMARY, key: &key };
    assert_eq!(execute(delete), r#"[[200, "ups", 2]]"#);
    assert_eq!(execute(delete), "[]");
}

#[test]
fn refusals_as_recorded() {
    let mut engine = engine();
    engine.insert(USERS, &mp(r#"[100, "new", null, []]"#), None).unwrap();
    let tuple = mp(r#"[100, "new"]"#);
    let text = r#"Duplicate key exists in unique index "pk" in space "users" with old tuple - [100, "new", null, []] and new tuple - [100, "new"]"#;
    assert_eq!(refused(&mut engine, Statement::Insert { space: USERS, tuple: &tuple }), (3, text.into()));
    let tuple = mp(r#"["a", "new"]"#);
    let text = "Tuple field 1 (id) type does not match one required by operation: expected unsigned, got string";
    assert_eq!(refused(&mut engine, Statement::Insert { space: USERS, tuple: &tuple }), (23, text.into()));
    let tuple = mp("[101]");
    let text = "Tuple field 2 (name) required by space format is missing";
    assert_eq!(refused(&mut engine, Statement::Replace { space: USERS, tuple: &tuple }), (39, text.into()));
    let key = mp(r#"["x"]"#);
    let text = "Get() doesn't support partial keys and non-unique indexes";
    assert_eq!(refused(&mut engine, Statement::Delete { space: USERS, index: BY_NAME, key: &key }), (41, text.into()));
    let key = mp("[]");
    let text = "Invalid key part count in an exact match (expected 1, got 0)";
    assert_eq!(refused(&mut engine, Statement::Delete { space: USERS, index: PRIMARY, key: &key }), (19, text.into()));
    let (key, ops) = (mp("[1]"), mp(r#"[["=", 1, 77]]"#));
    let update = Statement::Update { space: USERS, index: PRIMARY, key: &key, ops: &ops, base: 1 };
    let text = "Attempt to modify a tuple field which is part of primary index in space 'users'";
    assert_eq!(refused(&mut engine, update), (94, text.into()));
    let tuple = mp("[1]");
    assert_eq!(refused(&mut engine, Statement::Insert { space: SpaceRef::Id(281), tuple: &tuple }).0, 113);
    assert_eq!(refused(&mut engine, Statement::Insert { space: SpaceRef::Id(280), tuple: &tuple }).0, 42);
}

#[test]
fn an_upsert_that_would_change_the_primary_key_does_nothing() {
    let mut engine = engine();
    let before = engine.snapshot();
    engine.upsert(USERS, &mp(r#"[1, "x"]"#), &mp(r#"[["=", 1, 50]]"#), 1, None).unwrap();
    assert_eq!(engine.snapshot(), before);
    let error = engine.upsert(USERS, &mp(r#"[77, "x"]"#), &mp(r#"[["?", 1, 50]]"#), 1, None).unwrap_err();
    assert_eq!(error.code, 28, "operations are checked although they are not used");
}

#[test]
fn unique_secondary_indexes_hold_against_everything() {
    let mut engine = Engine::new();
    let (id, _) = engine.create_space("s", &SpaceOptions::default()).unwrap();
    let space = SpaceRef::Id(id);
    let index = |field, nullable| IndexOptions {
        parts: vec![PartOptions { is_nullable: Some(nullable), ..PartOptions::new(field, "unsigned") }],
        ..IndexOptions::default()
    };
    engine.create_index(space, "pk", &index(1, false)).unwrap();
    engine.create_index(space, "sk", &index(2, true)).unwrap();
    for tuple in ["[1, 10]", "[2, 20]", "[3, null]", "[4]"] {
        engine.insert(space, &mp(tuple), None).unwrap();
    }
    assert_eq!(engine.insert(space, &mp("[5, 10]"), None).unwrap_err().code, 3);
    assert_eq!(engine.replace(space, &mp("[1, 20]"), None).unwrap_err().code, 3);
    let ops = mp(r#"[["=", 2, 20]]"#);
    assert_eq!(engine.update(space, PRIMARY, &mp("[1]"), &ops, 1, None).unwrap_err().code, 3);
    assert_eq!(engine.upsert(space, &mp("[1, 5]"), &ops, 1, None).unwrap_err().code, 3);
    assert_eq!(engine.upsert(space, &mp("[9, 20]"), &ops, 1, None).unwrap_err().code, 3);
    // Null is not a duplicate of null, a key without null of one index finds its tuple.
    engine.replace(space, &mp("[5, null]"), None).unwrap();
    let found = engine.update(space, BY_NAME, &mp("[20]"), &mp(r#"[["=", 3, "x"]]"#), 1, None).unwrap();
    assert_eq!(show(&found.unwrap()), r#"[2, 20, "x"]"#);
    let text = "Supplied key type of part 0 does not match index part type: expected unsigned";
    assert_eq!(engine.get(space, BY_NAME, &mp("[null]"), None).unwrap_err().message, text);
    assert_eq!(engine.count(space, BY_NAME, 0, &mp("[null]"), None).unwrap(), 3);
    assert_eq!(show(&engine.delete(space, BY_NAME, &mp("[10]"), None).unwrap().unwrap()), "[1, 10]");
    engine.insert(space, &mp("[6, 10]"), None).unwrap();
}

#[test]
fn tuples_with_null_stay_out_where_they_are_excluded() {
    let mut engine = Engine::new();
    let (id, _) = engine.create_space("s", &SpaceOptions::default()).unwrap();
    let space = SpaceRef::Id(id);
    engine.create_index(space, "pk", &IndexOptions::default()).unwrap();
    let part = PartOptions { exclude_null: true, ..PartOptions::new(2, "string") };
    engine.create_index(space, "sk", &IndexOptions { parts: vec![part], ..IndexOptions::default() }).unwrap();
    for tuple in [r#"[1, "a"]"#, "[2, null]", "[3]"] {
        engine.insert(space, &mp(tuple), None).unwrap();
    }
    assert_eq!(engine.len(space, BY_NAME).unwrap(), 1);
    engine.replace(space, &mp("[1]"), None).unwrap();
    assert_eq!(engine.len(space, BY_NAME).unwrap(), 0);
    engine.replace(space, &mp(r#"[2, "b"]"#), None).unwrap();
    assert_eq!((engine.len(space, BY_NAME).unwrap(), engine.len(space, PRIMARY).unwrap()), (1, 3));
}

#[test]
fn min_max_count_len_get() {
    let mut engine = engine();
    let id = |tuple: Option<Tuple>| tuple.map(|t| t[1]);
    assert_eq!(id(engine.min(USERS, PRIMARY, &[0x90], None).unwrap()), Some(1));
    assert_eq!(id(engine.max(USERS, PRIMARY, &[0x90], None).unwrap()), Some(10));
    assert_eq!(id(engine.min(USERS, PRIMARY, &mp("[4]"), None).unwrap()), Some(4));
    assert_eq!(id(engine.max(USERS, PRIMARY, &mp("[99]"), None).unwrap()), Some(10));
    assert_eq!(id(engine.min(USERS, PRIMARY, &mp("[99]"), None).unwrap()), None);
    assert_eq!(engine.count(USERS, PRIMARY, IteratorType::Gt as u64, &mp("[7]"), None).unwrap(), 3);
    assert_eq!(engine.len(USERS, PRIMARY).unwrap(), 10);
    assert_eq!(id(engine.get(USERS, PRIMARY, &mp("[7]"), None).unwrap()), Some(7));
    assert_eq!(id(engine.get(USERS, PRIMARY, &mp("[77]"), None).unwrap()), None);
    let text = "Index 'pk' (HASH) of space 'plain' (memtx) does not support min()";
    assert_eq!(engine.min(PLAIN, PRIMARY, &[0x90], None).unwrap_err().message, text);
}

#[test]
fn a_cursor_survives_changes() {
    let mut engine = engine();
    let mut cursor = engine.iterate(USERS, PRIMARY, IteratorType::All as u64, &[0x90], None, 1).unwrap();
    let mut seen = Vec::new();
    while let Some(tuple) = engine.next(&mut cursor, None).unwrap() {
        seen.push(tuple[1]);
        engine.delete(USERS, PRIMARY, &[0x91, tuple[1]], None).unwrap();
        if tuple[1] == 4 {
            engine.delete(USERS, PRIMARY, &[0x91, 5], None).unwrap();
            engine.insert(USERS, &mp(r#"[50, "x"]"#), None).unwrap();
        }
    }
    assert_eq!(seen, [2, 3, 4, 6, 7, 8, 9, 10, 50]);
    let mut cursor = engine.iterate(USERS, PRIMARY, IteratorType::Eq as u64, &mp("[1]"), None, 0).unwrap();
    assert!(engine.next(&mut cursor, None).unwrap().is_some());
    assert!(engine.next(&mut cursor, None).unwrap().is_none());
    let mut cursor = engine.iterate(USERS, PRIMARY, IteratorType::Le as u64, &[0x90], None, 0).unwrap();
    engine.drop_space(USERS).unwrap();
    assert_eq!(engine.next(&mut cursor, None).unwrap(), None);
}

#[test]
fn the_conflict_as_recorded() {
    let mut engine = engine();
    let (a, b) = (engine.begin(), engine.begin());
    assert_eq!(ids(&mut engine, PRIMARY, IteratorType::Eq, "[1]", Some(a)), ["1"]);
    engine.replace(USERS, &mp(r#"[1, "b", 1]"#), Some(b)).unwrap();
    engine.commit(b).unwrap();
    let conflict = |error: BoxError| (error.code, error.message);
    let expected = (97, "Transaction has been aborted by conflict".to_string());
    assert_eq!(conflict(engine.replace(USERS, &mp(r#"[1, "a", 1]"#), Some(a)).unwrap_err()), expected);
    assert_eq!(conflict(engine.get(USERS, PRIMARY, &mp("[1]"), Some(a)).unwrap_err()), expected);
    assert_eq!(conflict(engine.commit(a).unwrap_err()), expected);
    assert!(!engine.is_open(a));
    assert_eq!(show(&engine.get(USERS, PRIMARY, &mp("[1]"), None).unwrap().unwrap()), r#"[1, "b", 1]"#);
}

#[test]
fn changes_are_seen_inside_at_once_and_outside_after_commit() {
    let mut engine = engine();
    let txn = engine.begin();
    engine.insert(USERS, &mp(r#"[300, "tx"]"#), Some(txn)).unwrap();
    engine.delete(USERS, PRIMARY, &mp("[1]"), Some(txn)).unwrap();
    engine.update(USERS, PRIMARY, &mp("[2]"), &mp(r#"[["=", 2, "zz"]]"#), 1, Some(txn)).unwrap();
    let inside = ids(&mut engine, BY_NAME, IteratorType::All, "[]", Some(txn));
    assert_eq!(inside, ["300", "10", "3", "4", "5", "6", "7", "8", "9", "2"]);
    let inside = ids(&mut engine, BY_NAME, IteratorType::Le, "[]", Some(txn));
    assert_eq!(inside, ["2", "9", "8", "7", "6", "5", "4", "3", "10", "300"]);
    let outside = ids(&mut engine, PRIMARY, IteratorType::All, "[]", None);
    assert_eq!(outside, ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10"]);
    assert_eq!(engine.insert(USERS, &mp(r#"[300, "again"]"#), Some(txn)).unwrap_err().code, 3);
    assert_eq!(engine.len(USERS, PRIMARY).unwrap(), 10);
    engine.commit(txn).unwrap();
    let outside = ids(&mut engine, BY_NAME, IteratorType::All, "[]", None);
    assert_eq!(outside, ["300", "10", "3", "4", "5", "6", "7", "8", "9", "2"]);
    engine.commit(txn).unwrap();
}

#[test]
fn a_rollback_leaves_nothing() {
    let mut engine = engine();
    let before = engine.snapshot();
    let txn = engine.begin();
    engine.replace(USERS, &mp(r#"[1, "x"]"#), Some(txn)).unwrap();
    engine.delete(USERS, PRIMARY, &mp("[2]"), Some(txn)).unwrap();
    engine.rollback(txn);
    assert_eq!(engine.snapshot(), before);
    engine.rollback(txn);
}

#[test]
fn a_reader_that_has_not_written_goes_on_in_the_past() {
    let mut engine = engine();
    let txn = engine.begin();
    let before = ids(&mut engine, BY_AGE, IteratorType::All, "[]", Some(txn));
    engine.replace(USERS, &mp(r#"[1, "changed", 99]"#), None).unwrap();
    engine.insert(USERS, &mp(r#"[50, "new", 1]"#), None).unwrap();
    engine.delete(USERS, PRIMARY, &mp("[4]"), None).unwrap();
    engine.delete(USERS, PRIMARY, &mp("[50]"), None).unwrap();
    assert_eq!(ids(&mut engine, BY_AGE, IteratorType::All, "[]", Some(txn)), before);
    assert_eq!(
        show(&engine.get(USERS, PRIMARY, &mp("[1]"), Some(txn)).unwrap().unwrap()),
        r#"[1, "user1", 21, ["a", "b"]]"#
    );
    assert_eq!(ids(&mut engine, PRIMARY, IteratorType::Req, "[]", Some(txn)).len(), 10);
    engine.commit(txn).unwrap();
    assert_eq!(ids(&mut engine, BY_AGE, IteratorType::All, "[]", None), ["2", "3", "5", "6", "7", "8", "9", "10", "1"]);
}

#[test]
fn what_was_not_read_is_no_conflict() {
    let mut engine = engine();
    let txn = engine.begin();
    assert_eq!(ids(&mut engine, PRIMARY, IteratorType::Lt, "[3]", Some(txn)), ["2", "1"]);
    let first = Select { limit: 1, ..query(USERS, PRIMARY, IteratorType::Ge, b"\x91\x05") };
    run(&mut engine, &first, Some(txn)).unwrap();
    engine.replace(USERS, &mp(r#"[3, "x"]"#), None).unwrap();
    engine.replace(USERS, &mp(r#"[6, "x"]"#), None).unwrap();
    engine.replace(USERS, &mp(r#"[60, "mine"]"#), Some(txn)).unwrap();
    engine.commit(txn).unwrap();
    let txn = engine.begin();
    run(&mut engine, &first, Some(txn)).unwrap();
    engine.replace(USERS, &mp(r#"[60, "mine"]"#), Some(txn)).unwrap();
    engine.replace(USERS, &mp(r#"[5, "x"]"#), None).unwrap();
    assert_eq!(engine.commit(txn).unwrap_err().code, 97);
}

#[test]
fn the_absence_of_a_key_is_read_too() {
    let mut engine = engine();
    let txn = engine.begin();
    engine.insert(USERS, &mp(r#"[70, "mine"]"#), Some(txn)).unwrap();
    engine.insert(USERS, &mp(r#"[70, "theirs"]"#), None).unwrap();
    assert_eq!(engine.commit(txn).unwrap_err().code, 97);
    let txn = engine.begin();
    assert!(engine.update(USERS, PRIMARY, &mp("[80]"), &mp(r#"[["=", 2, "x"]]"#), 1, Some(txn)).unwrap().is_none());
    engine.replace(USERS, &mp(r#"[81, "mine"]"#), Some(txn)).unwrap();
    engine.insert(USERS, &mp(r#"[80, "theirs"]"#), None).unwrap();
    assert_eq!(engine.commit(txn).unwrap_err().code, 97);
}

#[test]
fn the_last_blind_write_wins() {
    let mut engine = engine();
    let (a, b) = (engine.begin(), engine.begin());
    engine.replace(USERS, &mp(r#"[1, "a", 1]"#), Some(a)).unwrap();
    engine.replace(USERS, &mp(r#"[1, "b", 2]"#), Some(b)).unwrap();
    engine.commit(b).unwrap();
    assert_eq!(ids(&mut engine, BY_AGE, IteratorType::Lt, "[20]", Some(a)), ["1"], "one tuple, the own one");
    engine.commit(a).unwrap();
    assert_eq!(show(&engine.get(USERS, PRIMARY, &mp("[1]"), None).unwrap().unwrap()), r#"[1, "a", 1]"#);
    assert_eq!(engine.len(USERS, BY_AGE).unwrap(), 10);
}

#[test]
fn tuples_may_swap_their_secondary_keys() {
    let mut engine = Engine::new();
    let (id, _) = engine.create_space("s", &SpaceOptions::default()).unwrap();
    let space = SpaceRef::Id(id);
    engine.create_index(space, "pk", &IndexOptions::default()).unwrap();
    let parts = vec![PartOptions::new(2, "unsigned")];
    engine.create_index(space, "sk", &IndexOptions { parts, ..IndexOptions::default() }).unwrap();
    engine.insert(space, &mp("[1, 10]"), None).unwrap();
    engine.insert(space, &mp("[2, 20]"), None).unwrap();
    let txn = engine.begin();
    engine.delete(space, PRIMARY, &mp("[1]"), Some(txn)).unwrap();
    engine.replace(space, &mp("[2, 10]"), Some(txn)).unwrap();
    engine.insert(space, &mp("[1, 20]"), Some(txn)).unwrap();
    engine.commit(txn).unwrap();
    assert_eq!(show(&engine.get(space, BY_NAME, &mp("[10]"), None).unwrap().unwrap()), "[2, 10]");
    assert_eq!(show(&engine.get(space, BY_NAME, &mp("[20]"), None).unwrap().unwrap()), "[1, 20]");
    assert_eq!(engine.len(space, BY_NAME).unwrap(), 2);
}

#[test]
fn a_changed_schema_ends_the_transactions_it_touches() {
    let mut engine = engine();
    let (reader, stranger) = (engine.begin(), engine.begin());
    ids(&mut engine, PRIMARY, IteratorType::All, "[]", Some(reader));
    engine.replace(PLAIN, &mp(r#"["x"]"#), Some(stranger)).unwrap();
    let version = engine.schema_version();
    engine.drop_index(USERS, BY_AGE).unwrap();
    assert!(engine.schema_version() > version);
    assert_eq!(engine.commit(reader).unwrap_err().code, 97);
    engine.commit(stranger).unwrap();
}

#[test]
fn the_schema_is_visible() {
    let mut engine = engine();
    let mut rows = |id, key: &str| {
        run(&mut engine, &query(SpaceRef::Id(id), PRIMARY, IteratorType::Eq, &mp(key)), None).unwrap().0
    };
    let users = r#"[700, 1, "users", "memtx", 0, {}, [{"name": "id", "type": "unsigned"}, {"name": "name", "type": "string"}, {"name": "age", "type": "unsigned", "is_nullable": true}, {"name": "tags", "type": "array", "is_nullable": true}]]"#;
    assert_eq!(rows(281, "[700]"), [users]);
    assert_eq!(
        rows(289, "[700]"),
        [
            r#"[700, 0, "pk", "tree", {"unique": true}, [[0, "unsigned"]]]"#,
            r#"[700, 1, "by_name", "tree", {"unique": false}, [{"field": 1, "type": "string", "collation": 2}]]"#,
            r#"[700, 2, "by_age", "tree", {"unique": false}, [{"field": 2, "type": "unsigned", "is_nullable": true}]]"#,
        ]
    );
    assert_eq!(rows(289, "[701]"), [r#"[701, 0, "pk", "HASH", {"unique": true}, [[0, "string"]]]"#]);
    assert_eq!(rows(277, "[2]"), [r#"[2, "unicode_ci", 1, "ICU", "", {"strength": "primary"}]"#]);
    assert_eq!(rows(341, "[]").len(), 0);
    assert_eq!(rows(305, "[]").len(), 5);
    assert_eq!(rows(281, "[281]").len(), 1);
    assert_eq!(rows(289, "[289]").len(), 2);
    let by_name = query(SpaceRef::Name(b"_vspace"), IndexRef::Name(b"name"), IteratorType::Eq, b"\x91\xa5users");
    assert_eq!(run(&mut engine, &by_name, None).unwrap().0, [users]);
    engine.drop_space(USERS).unwrap();
    assert_eq!(run(&mut engine, &by_name, None).unwrap().0.len(), 0);
    assert_eq!(engine.count(SpaceRef::Id(288), PRIMARY, 0, &mp("[700]"), None).unwrap(), 0);
}

#[test]
fn names_and_ids_are_given_once() {
    let mut engine = engine();
    let default = SpaceOptions::default();
    let text = |error: BoxError| (error.code, error.message);
    assert_eq!(text(engine.create_space("users", &default).unwrap_err()), (10, "Space 'users' already exists".into()));
    let again = SpaceOptions { if_not_exists: true, ..default.clone() };
    assert_eq!(engine.create_space("users", &again).unwrap(), (700, false));
    assert_eq!(engine.create_space("next", &default).unwrap(), (702, true));
    let taken = SpaceOptions { id: Some(700), ..default.clone() };
    let error = engine.create_space("other", &taken).unwrap_err();
    assert!(error.message.starts_with(r#"Duplicate key exists in unique index "primary" in space "_space""#));
    let vinyl = SpaceOptions { engine: Some("vinyl".into()), ..default.clone() };
    assert_eq!(text(engine.create_space("v", &vinyl).unwrap_err()), (57, "Space engine 'vinyl' does not exist".into()));
    let text_of_empty = "Invalid identifier '' (expected printable symbols only or it is too long)";
    assert_eq!(text(engine.create_space("", &default).unwrap_err()), (70, text_of_empty.into()));
    let error = engine.create_index(USERS, "pk", &IndexOptions::default()).unwrap_err();
    assert_eq!(text(error), (85, "Index 'pk' already exists".into()));
    assert_eq!(Engine::new().create_space("first", &default).unwrap(), (512, true));
}

#[test]
fn index_definitions_are_checked() {
    let mut engine = engine();
    let mut text = |options: &str| {
        let options = IndexOptions::from_msgpack(&mp(options)).unwrap();
        let error = engine.create_index(USERS, "i", &options).unwrap_err();
        (error.code, error.message)
    };
    let wrong = |details: &str| (14, format!("Can't create or modify index 'i' in space 'users': {details}"));
    assert_eq!(text(r#"{"parts": [[1, "unsigned"], [1, "unsigned"]]}"#), wrong("same key part is indexed twice"));
    assert_eq!(text(r#"{"type": "hash", "unique": false}"#), wrong("HASH index must be unique"));
    assert_eq!(text(r#"{"parts": [[4, "array"]]}"#), wrong("field type 'array' is not supported"));
    assert_eq!(text(r#"{"id": 200}"#), wrong("index id too big"));
    assert_eq!(
        text(r#"{"type": "rtree"}"#),
        (13, "Unsupported index type supplied for index 'i' in space 'users'".into())
    );
    assert_eq!(text(r#"{"type": "hash", "parts": ["age"]}"#), (5, "HASH does not support nullable parts".into()));
    let mismatch = "Field 2 (name) has type 'string' in one index, but type 'unsigned' in another";
    assert_eq!(text(r#"{"parts": [[2, "unsigned"]]}"#), (24, mismatch.into()));
    engine.create_space("empty", &SpaceOptions::default()).unwrap();
    let mut text = |options: &str| {
        let options = IndexOptions::from_msgpack(&mp(options)).unwrap();
        let error = engine.create_index(SpaceRef::Name(b"empty"), "i", &options).unwrap_err();
        (error.code, error.message)
    };
    let message = "Can't modify space 'empty': can not add a secondary key before primary";
    assert_eq!(text(r#"{"id": 1}"#), (12, message.into()));
    let message = "Can't create or modify index 'i' in space 'empty': primary key must be unique";
    assert_eq!(text(r#"{"unique": false}"#), (14, message.into()));
    let message = "Primary index of space 'empty' can not contain nullable parts";
    assert_eq!(text(r#"{"parts": [{"field": 1, "type": "string", "is_nullable": true}]}"#), (152, message.into()));
    let message = "No index #0 is defined in space 'empty'";
    assert_eq!(engine.insert(SpaceRef::Name(b"empty"), &mp("[1]"), None).unwrap_err().message, message);
}

#[test]
fn an_index_is_built_over_what_is_there() {
    let mut engine = engine();
    let parts = vec![PartOptions { is_nullable: Some(false), ..PartOptions::new(3, "unsigned") }];
    let unique = IndexOptions { parts, ..IndexOptions::default() };
    engine.create_index(USERS, "age", &unique).unwrap();
    engine.drop_index(USERS, IndexRef::Name(b"age")).unwrap();
    engine.insert(USERS, &mp(r#"[11, "x", 21]"#), None).unwrap();
    assert_eq!(engine.create_index(USERS, "age", &unique).unwrap_err().code, 3);
    engine.delete(USERS, PRIMARY, &mp("[11]"), None).unwrap();
    engine.insert(USERS, &mp(r#"[11, "x", null]"#), None).unwrap();
    let text = "Tuple field 3 (age) type does not match one required by operation: expected unsigned, got nil";
    assert_eq!(engine.create_index(USERS, "age", &unique).unwrap_err().message, text);
    let text = "Can't drop primary key in space 'users' while secondary keys exist";
    assert_eq!(engine.drop_index(USERS, PRIMARY).unwrap_err().message, text);
    let text = "Tuple field 3 (n) type does not match one required by operation: expected string, got unsigned";
    let fields = vec![
        FieldDef::new("id", FieldType::Unsigned),
        FieldDef::new("name", FieldType::String),
        FieldDef::new("n", FieldType::String),
    ];
    engine.drop_index(USERS, BY_AGE).unwrap();
    assert_eq!(engine.set_format(USERS, fields).unwrap_err().message, text);
    engine.set_format(USERS, vec![FieldDef::new("key", FieldType::Unsigned)]).unwrap();
    let found = engine.update(USERS, PRIMARY, &mp("[2]"), &mp(r#"[["=", 3, "any"]]"#), 1, None).unwrap().unwrap();
    assert_eq!(show(&found), r#"[2, "user2", "any", ["a", "b"]]"#);
}

#[test]
fn limits_hold() {
    let mut engine = engine();
    engine.set_limits(Limits { tuple: 100, memory: 1000 });
    let long = format!(r#"[1, "{}"]"#, "x".repeat(200));
    assert_eq!(engine.replace(USERS, &mp(&long), None).unwrap_err().code, 110);
    let mut stored = 0;
    let error = loop {
        match engine.replace(USERS, &mp(&format!(r#"[{}, "{}"]"#, 1000 + stored, "x".repeat(80))), None) {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert_eq!((error.code, error.kind), (2, "OutOfMemory"));
    assert!(engine.bytes_used() <= 1000);
    for n in 0..stored {
        engine.delete(USERS, PRIMARY, &mp(&format!("[{}]", 1000 + n)), None).unwrap();
    }
    engine.replace(USERS, &mp(r#"[1, "x"]"#), None).unwrap();
    // What waits in transactions counts as well.
    let txn = engine.begin();
    let mut room = 1000 - engine.bytes_used();
    let error = (2000..)
        .find_map(|n| {
            let tuple = mp(&format!(r#"[{n}, "{}"]"#, "x".repeat(80)));
            let done = engine.replace(USERS, &tuple, Some(txn));
            assert_eq!(done.is_ok(), tuple.len() <= room);
            room = room.saturating_sub(tuple.len());
            done.err()
        })
        .unwrap();
    assert_eq!(error.code, 2);
    engine.rollback(txn);
    engine.truncate(USERS).unwrap();
    assert_eq!(engine.bytes_used(), 0);
}

#[test]
fn a_sequence_numbers_what_is_inserted() {
    let mut engine = Engine::new();
    let (id, _) = engine.create_space("seqd", &SpaceOptions { id: Some(702), ..SpaceOptions::default() }).unwrap();
    let space = SpaceRef::Id(id);
    let options = |text: &str| IndexOptions::from_msgpack(&mp(text)).unwrap();
    let text = |error: BoxError| error.message;
    let wrong = "Can't create or modify index 'pk' in space 'seqd': sequence cannot be used with a non-integer key";
    let by_string = options(r#"{"sequence": true, "parts": [1, "string"]}"#);
    assert_eq!(text(engine.create_index(space, "pk", &by_string).unwrap_err()), wrong);
    engine.create_index(space, "pk", &options(r#"{"sequence": true}"#)).unwrap();
    let wrong = "Can't create or modify index 'sk' in space 'seqd': sequence cannot be used with a secondary key";
    assert_eq!(text(engine.create_index(space, "sk", &options(r#"{"sequence": true}"#)).unwrap_err()), wrong);
    assert_eq!(show(&engine.insert(space, &mp(r#"[null, "auto"]"#), None).unwrap()), r#"[1, "auto"]"#);
    engine.replace(space, &mp("[10]"), None).unwrap();
    let txn = engine.begin();
    assert_eq!(show(&engine.replace(space, &mp("[null]"), Some(txn)).unwrap()), "[11]");
    engine.rollback(txn);
    let mut restored = Engine::restore(&engine.snapshot()).unwrap();
    for engine in [&mut engine, &mut restored] {
        assert_eq!(show(&engine.insert(space, &mp("[null]"), None).unwrap()), "[12]");
        let all = query(SpaceRef::Id(341), PRIMARY, IteratorType::All, &[0x90]);
        assert_eq!(run(engine, &all, None).unwrap().0, [r#"[702, 1, true, 0, ""]"#]);
        engine.drop_index(space, PRIMARY).unwrap();
        assert_eq!(run(engine, &all, None).unwrap().0.len(), 0);
    }
}

#[test]
fn a_snapshot_restores_everything() {
    let mut engine = engine();
    engine.insert(PLAIN, &mp(r#"["x", 1]"#), None).unwrap();
    let txn = engine.begin();
    engine.delete(USERS, PRIMARY, &mp("[1]"), Some(txn)).unwrap();
    let descending = r#"{"parts": [{"field": 1, "type": "string", "sort_order": "desc"}], "unique": false}"#;
    engine.create_index(PLAIN, "back", &IndexOptions::from_msgpack(&mp(descending)).unwrap()).unwrap();
    let bytes = engine.snapshot();
    let mut restored = Engine::restore(&bytes).unwrap();
    assert_eq!(restored.snapshot(), Engine::restore(&restored.snapshot()).unwrap().snapshot());
    assert!(restored.schema_version() >= engine.schema_version());
    for id in [281, 289, 700, 701] {
        let all = query(SpaceRef::Id(id), PRIMARY, IteratorType::All, &[0x90]);
        assert_eq!(run(&mut restored, &all, None).unwrap(), run(&mut engine, &all, None).unwrap());
    }
    assert_eq!(restored.bytes_used(), engine.bytes_used());
}

#[test]
fn restored_contents_take_the_place_of_the_old() {
    let mut engine = engine();
    let bytes = engine.snapshot();
    engine.drop_space(PLAIN).unwrap();
    let (version, txn) = (engine.schema_version(), engine.begin());
    engine.delete(USERS, PRIMARY, &mp("[1]"), Some(txn)).unwrap();
    engine.adopt(Engine::restore(&bytes).unwrap());
    assert!(engine.schema_version() > version);
    assert_eq!(engine.commit(txn).unwrap_err().code, 97);
    assert_eq!((engine.len(USERS, PRIMARY).unwrap(), engine.len(PLAIN, PRIMARY).unwrap()), (10, 0));
}

#[test]
fn damaged_snapshots_are_refused() {
    let bytes = engine().snapshot();
    for at in (0..bytes.len()).step_by(3) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x55;
        assert!(Engine::restore(&damaged).is_err(), "{at}");
        assert!(Engine::restore(&bytes[..at]).is_err(), "{at}");
    }
    // Damage under a right checksum must not panic either.
    let mut random = Random(7);
    for _ in 0..500 {
        let mut damaged = bytes[..bytes.len() - 4].to_vec();
        for _ in 0..=random.below(3) {
            let at = 16 + random.below(damaged.len() as u64 - 16) as usize;
            damaged[at] = random.below(256) as u8;
        }
        damaged.extend(crc32fast::hash(&damaged).to_be_bytes());
        let _ = Engine::restore(&damaged);
    }
}

#[test]
fn files_are_replaced_whole() {
    let directory = std::env::temp_dir().join(format!("cord-engine-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("data.snap");
    let mut engine = engine();
    engine.save(&path).unwrap();
    engine.delete(USERS, PRIMARY, &mp("[1]"), None).unwrap();
    engine.save(&path).unwrap();
    assert_eq!(Engine::load(&path).unwrap().len(USERS, PRIMARY).unwrap(), 9);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1, "no draft is left");
    assert!(engine.save(&directory.join("no/such/place")).is_err());
    std::fs::write(&path, b"something else").unwrap();
    assert_eq!(Engine::load(&path).map(|_| ()).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    std::fs::remove_dir_all(&directory).unwrap();
}

/// xorshift: the same numbers in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

/// What the space of the property tests holds: id -> (unique number, or null; group).
type Model = BTreeMap<u64, (Option<u64>, u64)>;

fn model_engine() -> (Engine, u32) {
    let mut engine = Engine::new();
    let (id, _) = engine.create_space("m", &SpaceOptions::default()).unwrap();
    let space = SpaceRef::Id(id);
    let nullable = |field| PartOptions { is_nullable: Some(true), ..PartOptions::new(field, "unsigned") };
    engine.create_index(space, "pk", &IndexOptions::default()).unwrap();
    engine
        .create_index(space, "unique", &IndexOptions { parts: vec![nullable(2)], ..IndexOptions::default() })
        .unwrap();
    let parts = vec![PartOptions::new(3, "unsigned")];
    engine
        .create_index(space, "group", &IndexOptions { parts, unique: Some(false), ..IndexOptions::default() })
        .unwrap();
    (engine, id)
}

fn text_of(id: u64, row: (Option<u64>, u64)) -> String {
    format!("[{id}, {}, {}]", row.0.map_or("null".into(), |n| n.to_string()), row.1)
}

/// One random statement on both; they must agree on success.
fn step(engine: &mut Engine, id: u32, model: &mut Model, random: &mut Random, txn: Option<TxnId>) {
    let space = SpaceRef::Id(id);
    let key = random.below(12);
    let row = (Some(random.below(15)).filter(|n| *n < 12), random.below(4));
    let taken = |model: &Model, except: u64, n: Option<u64>| {
        n.is_some() && model.iter().any(|(k, other)| *k != except && other.0 == n)
    };
    let tuple = mp(&text_of(key, row));
    match random.below(5) {
        0 => {
            let fits = !model.contains_key(&key) && !taken(model, key, row.0);
            assert_eq!(engine.insert(space, &tuple, txn).is_ok(), fits);
            if fits {
                model.insert(key, row);
            }
        }
        1 => {
            let fits = !taken(model, key, row.0);
            assert_eq!(engine.replace(space, &tuple, txn).is_ok(), fits);
            if fits {
                model.insert(key, row);
            }
        }
        2 => {
            let old = engine.delete(space, PRIMARY, &mp(&format!("[{key}]")), txn).unwrap();
            assert_eq!(old.map(|t| show(&t)), model.remove(&key).map(|row| text_of(key, row)));
        }
        3 => {
            let unique = row.0.map_or("null".to_string(), |n| n.to_string());
            let ops = mp(&format!(r#"[["=", 2, {unique}], ["+", 3, 1]]"#));
            let new = engine.update(space, PRIMARY, &mp(&format!("[{key}]")), &ops, 1, txn);
            match model.get(&key).copied() {
                None => assert_eq!(new.unwrap(), None),
                Some(_) if taken(model, key, row.0) => assert_eq!(new.unwrap_err().code, 3),
                Some(old) => {
                    let row = (row.0, old.1 + 1);
                    assert_eq!(show(&new.unwrap().unwrap()), text_of(key, row));
                    model.insert(key, row);
                }
            }
        }
        _ => {
            let done = engine.upsert(space, &tuple, &mp(r#"[["+", 3, 10]]"#), 1, txn);
            match model.get(&key).copied() {
                None if taken(model, key, row.0) => assert_eq!(done.unwrap_err().code, 3),
                None => {
                    done.unwrap();
                    model.insert(key, row);
                }
                Some(old) => {
                    done.unwrap();
                    model.insert(key, (old.0, old.1 + 10));
                }
            }
        }
    }
}

/// All three indexes in both directions show what the model holds.
fn compare(engine: &mut Engine, id: u32, model: &Model, txn: Option<TxnId>) {
    let mut rows: Vec<(u64, (Option<u64>, u64))> = model.iter().map(|(k, v)| (*k, *v)).collect();
    for index in 0..3 {
        match index {
            0 => rows.sort_by_key(|(k, _)| *k),
            1 => rows.sort_by_key(|(k, row)| (row.0, *k)),
            _ => rows.sort_by_key(|(k, row)| (row.1, *k)),
        }
        let mut expected: Vec<String> = rows.iter().map(|(k, row)| text_of(*k, *row)).collect();
        for iterator in [IteratorType::All, IteratorType::Req] {
            let select = query(SpaceRef::Id(id), IndexRef::Id(index), iterator, &[0x90]);
            assert_eq!(run(engine, &select, txn).unwrap().0, expected);
            expected.reverse();
        }
    }
}

#[test]
fn random_changes_agree_with_a_model() {
    for seed in 1..=8 {
        let mut random = Random(seed * 0x9e37_79b9);
        let (mut engine, id) = model_engine();
        let mut model = Model::new();
        for _ in 0..300 {
            step(&mut engine, id, &mut model, &mut random, None);
            compare(&mut engine, id, &model, None);
        }
        let bytes: usize = model.iter().map(|(k, row)| mp(&text_of(*k, *row)).len()).sum();
        assert_eq!(engine.bytes_used(), bytes);
    }
}

#[test]
fn random_transactions_agree_with_a_model() {
    for seed in 1..=40 {
        let mut random = Random(seed * 0x1234_5678_9abc);
        let (mut engine, id) = model_engine();
        let mut committed = Model::new();
        for _ in 0..20 {
            let txn = engine.begin();
            let mut inside = committed.clone();
            for _ in 0..random.below(10) {
                step(&mut engine, id, &mut inside, &mut random, Some(txn));
                compare(&mut engine, id, &inside, Some(txn));
                compare(&mut engine, id, &committed, None);
            }
            if random.below(3) == 0 {
                engine.rollback(txn);
            } else {
                engine.commit(txn).unwrap();
                committed = inside;
            }
            compare(&mut engine, id, &committed, None);
        }
    }
}

/// Several transactions at once: those that commit must have seen what a run of them one after the other shows.
#[test]
fn committed_transactions_can_be_put_in_one_order() {
    for seed in 1..=100 {
        let mut random = Random(seed * 0x5851_f42d_4c95);
        let (mut engine, id) = model_engine();
        let mut committed = Model::new();
        for _ in 0..10 {
            step(&mut engine, id, &mut committed, &mut random, None);
        }
        let space = SpaceRef::Id(id);
        // Each moves one unit from a group to another: the sum of the groups never changes.
        let mut open: Vec<TxnId> = (0..3).map(|_| engine.begin()).collect();
        let sum = |engine: &mut Engine, txn| {
            let (tuples, _) = run(engine, &query(space, PRIMARY, IteratorType::All, &[0x90]), txn).ok()?;
            Some(
                tuples
                    .iter()
                    .map(|t| t.trim_end_matches(']').rsplit(' ').next().unwrap().parse::<i64>().unwrap())
                    .sum(),
            )
        };
        let total: Option<i64> = sum(&mut engine, None);
        while let Some(txn) = open.get(random.below(3).min(open.len().max(1) as u64 - 1) as usize).copied() {
            let keys: Vec<u64> = committed.keys().copied().collect();
            if keys.len() < 2 || random.below(4) == 0 {
                let _ = engine.commit(txn);
                open.retain(|other| *other != txn);
                assert_eq!(sum(&mut engine, None), total);
                continue;
            }
            if let Some(seen) = sum(&mut engine, Some(txn)) {
                assert_eq!(Some(seen), total, "a transaction sees a consistent state");
            }
            let mut add = |key: u64, code: &str| {
                let ops = mp(&format!(r#"[["{code}", 3, 1]]"#));
                engine.update(space, PRIMARY, &mp(&format!("[{key}]")), &ops, 1, Some(txn)).is_ok()
            };
            let (from, to) =
                (keys[random.below(keys.len() as u64) as usize], keys[random.below(keys.len() as u64) as usize]);
            if add(to, "+") && !add(from, "-") {
                engine.rollback(txn);
                open.retain(|other| *other != txn);
            }
        }
    }
}

#[test]
fn hostile_requests_never_panic() {
    let mut engine = engine();
    let mut random = Random(99);
    let valid =
        [mp(r#"[1, "user1", 21, ["a"]]"#), mp("[3]"), mp(r#"[["+", 3, 1], [":", 2, 1, 1, "x"]]"#), mp(r#"["user3"]"#)];
    for _ in 0..10_000 {
        let mut part = || {
            let mut bytes = valid[random.below(4) as usize].clone();
            for _ in 0..random.below(3) {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
            bytes
        };
        let (a, b) = (part(), part());
        let space = [USERS, PLAIN, SpaceRef::Id(281), SpaceRef::Id(1)][random.below(4) as usize];
        let index = IndexRef::Id(random.below(4) as u32);
        let base = random.below(3);
        let statement = match random.below(6) {
            0 => Statement::Insert { space, tuple: &a },
            1 => Statement::Replace { space, tuple: &a },
            2 => Statement::Update { space, index, key: &a, ops: &b, base },
            3 => Statement::Delete { space, index, key: &a },
            4 => Statement::Upsert { space, tuple: &a, ops: &b, base },
            _ => Statement::Select(Select {
                offset: random.below(3),
                limit: random.below(5),
                iterator: random.below(15),
                after: [None, Some(After::Position(&b)), Some(After::Tuple(&b))][random.below(3) as usize],
                fetch_position: random.below(2) == 0,
                ..query(space, index, IteratorType::Eq, &a)
            }),
        };
        let mut out = Vec::new();
        if engine.execute(&statement, None, &mut out).is_ok() {
            assert_eq!(super::mp::skip(&out), Some(out.len()));
        }
    }
    Engine::restore(&engine.snapshot()).unwrap();
}
