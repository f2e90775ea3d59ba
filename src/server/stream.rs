//! Streams: requests of one are handled one after the other, in a transaction if one was begun.
//!
//! Source: `src/box/iproto.cc` (`iproto_msg_decode`, `tx_process_begin` and others), 3.9-dev.

use super::dispatch::Context;
use super::engine::error::{Code, Field};
use super::engine::{BoxError, Engine, TxnId};
use super::session::{Session, Stream};
use crate::iproto::constants::{key, kind};
use crate::iproto::decode::{Body, RequestHeader};
use crate::iproto::encode;

const ACTIVE_TRANSACTION: Code = Code(79, "ACTIVE_TRANSACTION");
const IN_STREAM: Code = Code(229, "UNABLE_TO_PROCESS_IN_STREAM");
const OUT_OF_STREAM: Code = Code(230, "UNABLE_TO_PROCESS_OUT_OF_STREAM");
const TIMEOUT: Code = Code(231, "TRANSACTION_TIMEOUT");
/// Isolation levels are numbered below this.
const ISOLATION_LEVELS: u64 = 5;

fn refuse(code: Code, text: String) -> BoxError {
    BoxError::client(code, text)
}

/// Rolls back what a session leaves open.
pub fn rollback(session: &mut Session, engine: &mut Engine) {
    for stream in session.streams.values_mut() {
        if let Some(txn) = stream.txn.take() {
            engine.rollback(txn);
        }
    }
}

/// Rolls back transactions whose time is over.
pub fn expire(session: &mut Session, engine: &mut Engine, now: u64) {
    session.streams.values_mut().for_each(|stream| expire_one(stream, engine, now));
}

fn expire_one(stream: &mut Stream, engine: &mut Engine, now: u64) {
    if stream.deadline != 0
        && now >= stream.deadline
        && let Some(txn) = stream.txn.take()
    {
        engine.rollback(txn);
        stream.deadline = 0;
        stream.expired = true;
    }
}

/// Whether a request of this kind makes sense in a stream.
fn belongs(kind: u32) -> bool {
    matches!(kind, kind::SELECT..=kind::CALL_16 | kind::EVAL..=kind::DELETE_RANGE | kind::PING)
}

/// A request of a stream: true when it may be handled now; else it was refused, or waits behind another.
pub(super) unsafe fn admit(context: &Context, header: &RequestHeader, packet: &[u8]) -> bool {
    // SAFETY: the context's pointers are live.
    unsafe {
        if !belongs(header.kind) {
            let name = kind::name(header.kind).unwrap_or("UNKNOWN");
            let refused = refuse(IN_STREAM, format!("Unable to process {name} request in stream"));
            context.refuse(header.sync, &refused.with("request", Field::Str(name)));
            return false;
        }
        let session = &mut *context.session;
        let stream = session.streams.entry(header.stream_id).or_default();
        if stream.busy || !stream.queue.is_empty() {
            stream.queue.push_back(packet.into());
            session.queued += packet.len();
            return false;
        }
        true
    }
}

/// The transaction that statements of a stream belong to.
///
/// # Errors
/// Its time is over.
pub(super) unsafe fn transaction(context: &Context, stream_id: u64) -> Result<Option<TxnId>, BoxError> {
    // SAFETY: the context's pointers are live.
    unsafe {
        let now = (*context.s).cord.clock.monotonic;
        transaction_of(&mut *context.session, &mut (*context.instance).engine, stream_id, now)
    }
}

/// The same for code that has no request at hand.
///
/// # Errors
/// Its time is over.
pub fn transaction_of(
    session: &mut Session,
    engine: &mut Engine,
    stream_id: u64,
    now: u64,
) -> Result<Option<TxnId>, BoxError> {
    let Some(stream) = session.streams.get_mut(&stream_id) else { return Ok(None) };
    expire_one(stream, engine, now);
    if stream.expired {
        return Err(refuse(TIMEOUT, "Transaction has been aborted by timeout".into()));
    }
    Ok(stream.txn)
}

/// BEGIN, COMMIT, ROLLBACK.
pub(super) unsafe fn control(context: &Context, header: &RequestHeader, body: &[u8]) {
    // SAFETY: the context's pointers are live; no Lua runs.
    unsafe {
        if header.stream_id == 0 {
            let name = kind::name(header.kind).unwrap_or("UNKNOWN");
            let refused = refuse(OUT_OF_STREAM, format!("Unable to process {name} request out of stream"));
            return context.refuse(header.sync, &refused.with("request", Field::Str(name)));
        }
        let body = match Body::of_request(header.kind, body) {
            Ok(body) => body,
            Err(broken) => return context.refuse(header.sync, &broken.into()),
        };
        if body.bool(key::IS_SYNC) == Some(false) {
            return context.refuse(header.sync, &BoxError::illegal("is_sync can only be true"));
        }
        let now = (*context.s).cord.clock.monotonic;
        let engine = &mut (*context.instance).engine;
        let stream = (&mut (*context.session).streams).entry(header.stream_id).or_default();
        expire_one(stream, engine, now);
        let made = match header.kind {
            kind::BEGIN => begin(stream, engine, &body, now),
            kind::COMMIT => commit(stream, engine),
            _ => {
                if let Some(txn) = stream.txn.take() {
                    engine.rollback(txn);
                }
                stream.expired = false;
                Ok(())
            }
        };
        match made {
            Ok(()) => encode::ok(context.out(), header.sync, context.schema_version()),
            Err(refused) => context.refuse(header.sync, &refused),
        }
    }
}

fn begin(stream: &mut Stream, engine: &mut Engine, body: &Body<'_>, now: u64) -> Result<(), BoxError> {
    if stream.txn.is_some() || stream.expired {
        let text = "Operation is not permitted when there is an active transaction ";
        return Err(refuse(ACTIVE_TRANSACTION, text.into()));
    }
    let timeout = body.double(key::TIMEOUT);
    if timeout.is_some_and(|seconds| seconds.is_nan() || seconds <= 0.0) {
        return Err(BoxError::illegal("timeout must be a number greater than 0"));
    }
    if body.uint(key::TXN_ISOLATION).is_some_and(|level| level >= ISOLATION_LEVELS) {
        return Err(BoxError::illegal("unknown isolation level"));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // saturates
    let deadline = timeout.map_or(0, |seconds| now.saturating_add((seconds * 1e9) as u64));
    stream.deadline = deadline;
    stream.txn = Some(engine.begin());
    Ok(())
}

fn commit(stream: &mut Stream, engine: &mut Engine) -> Result<(), BoxError> {
    if std::mem::take(&mut stream.expired) {
        return Err(refuse(TIMEOUT, "Transaction has been aborted by timeout".into()));
    }
    stream.txn.take().map_or(Ok(()), |txn| engine.commit(txn))
}
