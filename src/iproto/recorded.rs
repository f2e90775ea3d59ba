//! Exchanges recorded from Tarantool 3.9-dev (`spec/fixtures/iproto-newest.json`): our requests must be byte for byte
//! what was sent, and what was answered must be read.
#![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing)]

use super::auth;
use super::constants::{GREETING_SIZE, errcode, iterator, key, kind};
use super::decode::{self, Body, Frame, ResponseHeader};
use super::encode::{self, After, Header, Select, Statement, Target, TxnOptions};
use super::error::{self, ErrorBody};
use super::greeting;
use super::mp::Reader;
use std::convert::Infallible;

struct Exchange {
    name: String,
    request: Vec<u8>,
    responses: Vec<Vec<u8>>,
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn exchanges() -> Vec<Exchange> {
    let text = include_str!("../../spec/fixtures/iproto-newest.json");
    let json: serde_json::Value = serde_json::from_str(text).unwrap();
    let list = json["exchanges"].as_array().unwrap();
    assert_eq!(list.len(), 128);
    list.iter()
        .map(|e| Exchange {
            name: e["name"].as_str().unwrap().into(),
            request: unhex(e["request"].as_str().unwrap()),
            responses: e["responses"].as_array().unwrap().iter().map(|r| unhex(r.as_str().unwrap())).collect(),
        })
        .collect()
}

/// The packet of a whole response: its header and its body.
fn response(bytes: &[u8]) -> (ResponseHeader, &[u8]) {
    let Ok(Frame::Packet { start, end }) = decode::frame(bytes, u64::MAX) else { panic!("no packet") };
    assert_eq!(end, bytes.len());
    let (header, at) = decode::response_header(&bytes[start..end]).unwrap();
    (header, &bytes[start + at..end])
}

#[test]
fn every_response_is_read_to_its_end() {
    for exchange in exchanges() {
        for bytes in exchange.responses.iter().filter(|bytes| !bytes.starts_with(b"Tarantool")) {
            let (header, body) = response(bytes);
            let mut reader = Reader::new(body);
            assert_eq!(reader.skip(), Ok(()), "{}", exchange.name);
            assert!(reader.is_empty(), "{}", exchange.name);
            Body::parse(body).unwrap();
            if let Some(code) = header.error_code() {
                let ErrorBody::Stack(stack) = error::decode_body(body) else { panic!("{}", exchange.name) };
                let entries: Vec<_> = stack.map(|entry| entry.unwrap()).collect();
                let message = Body::parse(body).unwrap().str(key::ERROR_24).unwrap();
                assert_eq!(entries[0].message, message);
                assert!(entries[0].code == code || [32, 1].contains(&code), "{}", exchange.name);
                let mut again = Vec::new();
                error::encode_stack(&mut again, entries.into_iter());
                assert!(body.ends_with(&again), "{}", exchange.name);
            }
        }
    }
}

#[test]
fn every_sound_request_is_read() {
    for exchange in exchanges().iter().filter(|e| !e.request.is_empty()) {
        let Ok(Frame::Packet { start, end }) = decode::frame(&exchange.request, u64::MAX) else { continue };
        let packet = &exchange.request[start..end];
        let mut header = decode::RequestHeader::default();
        match decode::request_header(packet, &mut header) {
            Err(error) => {
                assert!(exchange.name.starts_with("header") || packet.is_empty(), "{}: {error}", exchange.name);
            }
            Ok(at) => {
                let refused = Body::of_request(header.kind, &packet[at..]).err();
                let Some(answer) = exchange.responses.first() else { continue };
                let (answer, body) = response(answer);
                match refused.map(|error| error.to_string()) {
                    None => assert_ne!(answer.error_code(), Some(errcode::MISSING_REQUEST_FIELD), "{}", exchange.name),
                    Some(text) => {
                        let message = Body::parse(body).unwrap().str(key::ERROR_24).unwrap();
                        assert_eq!(String::from_utf8_lossy(message), text, "{}", exchange.name);
                    }
                }
            }
        }
    }
}

#[test]
fn greeting_and_scramble_are_tarantools() {
    let all = exchanges();
    let find = |name: &str| all.iter().find(|e| e.name == name).unwrap();
    let bytes: &[u8; GREETING_SIZE] = find("greeting of the auth connection").responses[0][..].try_into().unwrap();
    let greeting = greeting::decode(bytes).unwrap();
    assert_eq!(greeting.version_id, greeting::version_id(3, 9, 0));
    assert_eq!(greeting.uuid, Some("d3a7fe0d-c595-4063-8e49-4b86af824a84"));

    let mut out = Vec::new();
    let scramble = auth::scramble(&greeting.salt, b"s3cret");
    encode::auth(&mut out, &Header::new(1), b"alice", &scramble);
    assert_eq!(out, find("auth chap-sha1 ok").request);
    assert!(auth::verify(&greeting.salt, &scramble, &auth::password_hash(b"s3cret")));

    out.clear();
    let wrong = find("auth wrong password");
    let sent: &auth::Scramble = wrong.request.last_chunk().unwrap();
    assert!(!auth::verify(&greeting.salt, sent, &auth::password_hash(b"s3cret")));
}

type Made = Result<(), Infallible>;

fn append(bytes: &'static [u8]) -> impl FnOnce(&mut Vec<u8>) -> Made {
    move |out| {
        out.extend_from_slice(bytes);
        Ok(())
    }
}

fn users(iterator: u32, offset: u64, limit: u64) -> Select<'static> {
    let (space, index) = (Target::Id(700), Target::Id(0));
    Select { space, index, iterator, offset, limit, fetch_position: false, after: After::Nothing }
}

/// What each recorded request should be when we make it.
fn remake(name: &str, sync: u64, out: &mut Vec<u8>) -> Option<Made> {
    let header = &Header::new(sync);
    let in_stream = |stream_id| Header { sync, stream_id, thread_id: None };
    let (space, primary) = (Target::Id(700), Target::Id(0));
    Some(match name {
        "id, newest features" => {
            encode::id(out, header, 10, encode::client_features(false));
            Ok(())
        }
        "call types" => encode::call(out, header, b"types", append(&[0x90])),
        "call echo" => encode::call(out, header, b"echo", append(b"\x95\xc0\x01\xa1x\x92\x01\x02\x81\xa1a\x01")),
        "eval" => encode::eval(out, header, b"return ..., 1", append(&[0x91, 5])),
        "select eq" => encode::select(out, header, &users(iterator::EQ, 0, 10), append(&[0x91, 3])),
        "select all limit offset" => encode::select(out, header, &users(iterator::ALL, 2, 3), append(&[0x90])),
        "select by name keys" => {
            let (space, index) = (Target::Name(b"users"), Target::Name(b"by_name"));
            let select = Select { space, index, ..users(iterator::EQ, 0, 10) };
            encode::select(out, header, &select, append(b"\x91\xa5USER4"))
        }
        "insert" => encode::insert(out, kind::INSERT, header, space, append(b"\x94\x64\xa3new\xc0\x90")),
        "replace" => encode::insert(out, kind::REPLACE, header, space, append(b"\x93\x64\xa5newer\x21")),
        "update" => {
            let ops = append(b"\x92\x93\xa1=\x02\xa3upd\x93\xa1+\x03\x05");
            encode::update(out, header, space, primary, append(&[0x91, 100]), ops)
        }
        "upsert insert" => {
            encode::upsert(out, header, space, append(b"\x93\xcc\xc8\xa3ups\x01"), append(b"\x91\x93\xa1+\x03\x01"))
        }
        "delete" => encode::delete(out, header, space, primary, append(&[0x91, 0xcc, 200])),
        "sql execute prepared" => {
            encode::execute(out, header, Statement::Prepared(0x8bab_a292), append(&[0x91, 1]), append(&[0x90]))
        }
        "sql prepare" => {
            encode::prepare(out, header, Statement::Text(b"SELECT a FROM t WHERE id = ?"));
            Ok(())
        }
        "sql unprepare" => {
            encode::prepare(out, header, Statement::Prepared(0x8bab_a292));
            Ok(())
        }
        "begin" => {
            encode::bare(out, kind::BEGIN, &in_stream(1));
            Ok(())
        }
        "begin with options" => {
            let options = TxnOptions { timeout: Some(5.0), isolation: Some(1), is_sync: None };
            encode::transaction(out, kind::BEGIN, &in_stream(2), &options);
            Ok(())
        }
        "commit" => {
            encode::transaction(out, kind::COMMIT, &in_stream(2), &TxnOptions::default());
            Ok(())
        }
        "watch: current value" => {
            encode::watch(out, kind::WATCH, &Header::default(), b"color");
            Ok(())
        }
        "watch_once" => {
            encode::watch(out, kind::WATCH_ONCE, header, b"color");
            Ok(())
        }
        "unwatch" => {
            encode::watch(out, kind::UNWATCH, &Header::default(), b"color");
            Ok(())
        }
        _ => return None,
    })
}

#[test]
fn our_requests_are_those_that_were_sent() {
    let mut remade = 0;
    for exchange in exchanges().iter().filter(|e| e.request.len() > 8) {
        let mut header = decode::RequestHeader::default();
        if decode::request_header(&exchange.request[5..], &mut header).is_err() {
            continue;
        }
        let mut out = Vec::new();
        if remake(&exchange.name, header.sync, &mut out).is_some() {
            assert_eq!(out, exchange.request, "{}", exchange.name);
            remade += 1;
        }
    }
    assert_eq!(remade, 21);
}

#[test]
fn our_responses_are_those_that_were_received() {
    let all = exchanges();
    let received = |name: &str| all.iter().find(|e| e.name == name).unwrap().responses[0].clone();
    let mut out = Vec::new();
    encode::ok(&mut out, 4, 0x5d);
    assert_eq!(out, received("ping"));
    out.clear();
    encode::id_response(&mut out, 1, 0x5d, 10, 0x1fff & !(1 << 10), Some(b"chap-sha1"));
    assert_eq!(out, received("id, newest features"));
    out.clear();
    let none = |out: &mut Vec<u8>| out.push(0x80);
    encode::data_with_formats(&mut out, kind::OK, 0x11, 0x5d, |_| Ok::<u32, Infallible>(0), none).unwrap();
    assert_eq!(out, received("call nothing"));
    out.clear();
    encode::event(&mut out, 0, b"color", Some(append(b"\xa3red"))).unwrap();
    assert_eq!(out, received("watch: current value"));
}
