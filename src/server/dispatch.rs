//! Packets to answers: what needs no Lua is answered at once, a CALL or EVAL becomes a fiber of its handler.
//!
//! ```text
//!   input buffer --frame, header, body--> PING, ID ...          --> output buffer
//!                                     '-> CALL: function and arguments made on the scratch thread, moved to a pooled
//!                                               fiber's thread ... it ends: `served` encodes its results --> output buffer
//! ```
//!
//! All packets of one read are handled inside one protected call on the scratch thread. Whatever raises there (memory,
//! or a metamethod of the table of functions) ends one request with an error; no value with a destructor is alive then.

use super::accounts::{self, Sight};
use super::engine::error::{self, Field};
use super::engine::{BoxError, Engine, Select, SpaceRef, Statement, TxnId};
use super::hub::{FEATURES, Hub, Instance, Purpose, Request, hook, open};
use super::request::{Named, Proof, named, proof};
use super::session::{Phase, Session};
use super::user::{GUEST, User};
use super::{stream, watch};
use crate::fiber::fiber::flag;
use crate::iproto::auth::{CHAP_SHA1, PAP_SHA256};
use crate::iproto::constants::{PROTOCOL_VERSION, errcode, feature, key, kind};
use crate::iproto::decode::{Body, Frame, RequestHeader, frame, id_body, request_header};
use crate::iproto::encode;
use crate::iproto::mp::{self, Reader};
use crate::lua::body::LuaFiber;
use crate::lua::fiber::spawn;
use crate::lua::msgpack::{self, Codec, EncodeError, Formats};
use crate::lua::state::{Job, Keep, State};
use mlua::ffi::*;
use std::ffi::{c_int, c_void};

/// Positions in the table that server.lua keeps at [`Keep::Server`].
pub mod kept {
    use std::ffi::c_int;
    /// `describe(value)`: code, message and stack (MessagePack) of an error.
    pub const DESCRIBE: c_int = 1;
    /// `wrap(f)`: a closure that calls `f`, made anew for each request when reuse is off.
    pub const WRAP: c_int = 2;
    /// `invoke(object, ...)`: calls what is callable but no function.
    pub const INVOKE: c_int = 3;
    /// `hook(instance, which, session id, peer, user or session, whether the login is good)`: runs triggers.
    pub const HOOK: c_int = 4;
    /// A table of the objects scripts have of sessions, by id.
    pub const SESSIONS: c_int = 5;
    /// A table of compiled expressions.
    pub const EVALS: c_int = 6;
    /// `refuse(seconds)`: waits, then raises the error of a failed login.
    pub const REFUSE: c_int = 7;
    /// `resolve(number, name, user)`: the function, and the object, of a name with brackets or of `box.space...:count`.
    pub const RESOLVE: c_int = 8;
    /// A table of the functions called by reference.
    pub const REFERENCES: c_int = 9;
    /// `set_formats(bytes)`: the formats of the tuples among the arguments that are decoded next.
    pub const FORMATS: c_int = 10;
    /// `serialize(...)`: its arguments as MessagePack objects.
    pub const SERIALIZE: c_int = 11;
    /// From here on: the table of functions of each server.
    pub const FUNCTIONS: c_int = 16;
}

/// One run over the packets of a session.
struct Batch {
    i: usize,
    /// Bytes of the packet under way.
    consumed: usize,
    /// Its sync.
    sync: u64,
    /// Where its answer begins in the output.
    mark: usize,
    /// The stream whose requests are handled, or 0.
    stream: u64,
    /// There is nothing left to do.
    through: bool,
}

/// Handles the packets that are wholly here, until there are no more or a limit is reached.
///
/// # Safety
/// `s` is live, `hub` its hub, `i` the slot of a session.
pub(super) unsafe fn packets(s: *mut State, hub: *mut Hub, i: usize) {
    // SAFETY: the caller's contract.
    unsafe { run(s, hub, i, run_batch) }
}

/// Handles the requests of streams whose turn has come.
///
/// # Safety
/// As [`packets`].
pub(super) unsafe fn streams(s: *mut State, hub: *mut Hub, i: usize) {
    // SAFETY: the caller's contract.
    unsafe { run(s, hub, i, run_streams) }
}

unsafe fn run(s: *mut State, hub: *mut Hub, i: usize, job: Job) {
    let mut batch = Batch { i, consumed: 0, sync: 0, mark: 0, stream: 0, through: false };
    // SAFETY: the caller's contract.
    unsafe {
        while !batch.through && !State::protected(s, job, (&raw mut batch).cast()) {
            // One request raised: it is answered, and the others go on.
            let session = (*hub).session(i);
            (&mut (*session).output).truncate(batch.mark);
            error(hub, session, batch.sync, errcode::PROC_LUA, b"the request could not be started: not enough memory");
            (&mut (*session).input).consume(batch.consumed);
            batch.consumed = 0;
            if batch.stream != 0 {
                (&mut (*session).ready).push(batch.stream);
                batch.stream = 0;
            }
        }
    }
}

unsafe fn run_streams(sl: *mut lua_State, s: *mut State, argument: *mut c_void) {
    let batch = argument.cast::<Batch>();
    // SAFETY: as for `run_batch`. The packet under way belongs to the session until it is handled.
    unsafe {
        let hub = (*s).server;
        let session = (*hub).session((*batch).i);
        let instance = (*hub).instance((*session).instance);
        let base = lua_gettop(sl);
        while let Some(id) = (&mut (*session).ready).pop() {
            (*batch).stream = id;
            while let Some(packet) = next_of(&mut *session, id) {
                (*session).queued -= packet.len();
                (*session).current = Some(packet);
                (*batch).sync = 0;
                (*batch).mark = (&(*session).output).len();
                let current = &raw const (*session).current;
                let packet = (&*current).as_deref().unwrap_or_default();
                let context = Context { sl, s, hub, i: (*batch).i, session, instance };
                handle(&context, packet, &mut (*batch).sync, true);
                lua_settop(sl, base);
            }
            (*batch).stream = 0;
        }
        (*session).current = None;
        (*batch).through = true;
    }
}

/// The next request of a stream that may be handled; a stream that has nothing left is forgotten.
fn next_of(session: &mut Session, id: u64) -> Option<Box<[u8]>> {
    let stream = session.streams.get_mut(&id)?;
    if stream.busy {
        return None;
    }
    let packet = stream.queue.pop_front();
    if packet.is_none() && stream.is_idle() {
        session.streams.remove(&id);
    }
    packet
}

unsafe fn run_batch(sl: *mut lua_State, s: *mut State, argument: *mut c_void) {
    let batch = argument.cast::<Batch>();
    // SAFETY: `packets` passes its batch. The session stays where it is: sessions are removed by the scheduler's callbacks
    // alone. Its input is read or moved by nobody else either.
    unsafe {
        let hub = (*s).server;
        let session = (*hub).session((*batch).i);
        let instance = (*hub).instance((*session).instance);
        let base = lua_gettop(sl);
        while (*session).phase == Phase::Open {
            if (*session).login.is_some() {
                (*session).held = true;
                break;
            }
            let input = &raw const (*session).input;
            let pending = (&*input).pending();
            match frame(pending, (*instance).limits.packet) {
                Err(broken) => {
                    // Nothing after this can be understood.
                    let context = Context { sl, s, hub, i: (*batch).i, session, instance };
                    context.refuse(0, &broken.into());
                    (*session).phase = Phase::Closing;
                }
                Ok(Frame::Incomplete(needed)) => {
                    (*session).needed = needed;
                    if pending.is_empty() {
                        (*session).half_since = 0;
                    } else if (*session).half_since == 0 {
                        (*session).half_since = (*s).cord.clock.monotonic;
                    }
                    break;
                }
                Ok(Frame::Packet { start, end }) => {
                    if (*instance).running >= (*instance).limits.net_msg_max
                        || (*session).unsent() + (*session).queued > (*instance).limits.unread
                    {
                        (*session).held = true;
                        (*hub).list((*batch).i);
                        break;
                    }
                    (*batch).consumed = end;
                    (*batch).sync = 0;
                    (*batch).mark = (&(*session).output).len();
                    let packet = pending.get(start..end).unwrap_or_default();
                    let context = Context { sl, s, hub, i: (*batch).i, session, instance };
                    handle(&context, packet, &mut (*batch).sync, false);
                    lua_settop(sl, base);
                    (&mut (*session).input).consume(end);
                    (*session).half_since = 0;
                }
            }
        }
        (*batch).through = true;
    }
}

/// What a request is handled with: pointers only.
pub(super) struct Context {
    pub(super) sl: *mut lua_State,
    pub(super) s: *mut State,
    pub(super) hub: *mut Hub,
    pub(super) i: usize,
    pub(super) session: *mut Session,
    pub(super) instance: *mut Instance,
}

impl Context {
    #[allow(clippy::mut_from_ref)] // the session is behind a pointer of its own
    pub(super) unsafe fn out(&self) -> &mut Vec<u8> {
        // SAFETY: the session outlives the context, and its output is borrowed for one statement at a time.
        unsafe { &mut (*self.session).output }
    }

    pub(super) unsafe fn schema_version(&self) -> u64 {
        // SAFETY: the instance outlives the context.
        unsafe { (&(*self.instance).engine).schema_version() }
    }

    pub(super) unsafe fn fail(&self, sync: u64, code: u32, message: &[u8]) {
        // SAFETY: as above.
        unsafe { error(self.hub, self.session, sync, code, message) }
    }
}

impl Context {
    /// Answers with one of the engine's errors.
    pub(super) unsafe fn refuse(&self, sync: u64, error: &BoxError) {
        // SAFETY: as above.
        unsafe {
            (*self.instance).stat.errors += 1;
            error.respond(sync, self.schema_version(), self.out());
        }
    }
}

/// Appends an error response.
unsafe fn error(hub: *mut Hub, session: *mut Session, sync: u64, code: u32, message: &[u8]) {
    // SAFETY: the callers pass a live hub and session.
    unsafe {
        let instance = (*hub).instance((*session).instance);
        let version = (&(*instance).engine).schema_version();
        (*instance).stat.errors += 1;
        encode::error(&mut (*session).output, sync, version, code, message);
    }
}

unsafe fn handle(context: &Context, packet: &[u8], sync: &mut u64, waited: bool) {
    let mut header = RequestHeader::default();
    // SAFETY: the context's pointers are live.
    unsafe {
        let at = match request_header(packet, &mut header) {
            Ok(at) => at,
            Err(broken) => return context.refuse(header.sync, &broken.into()),
        };
        *sync = header.sync;
        let body = packet.get(at..).unwrap_or_default();
        if header.thread_id != 0 {
            // There is one, number 0.
            let refused = BoxError::client(error::NO_SUCH_THREAD, "Thread does not exist");
            return context.refuse(header.sync, &refused.with("thread_id", Field::Uint(header.thread_id)));
        }
        if header.stream_id != 0 && !waited && !stream::admit(context, &header, packet) {
            return;
        }
        if let Some(count) = (&mut (*context.instance).stat.requests).get_mut((header.kind as usize).min(79)) {
            *count += 1;
        }
        let current = context.schema_version();
        if header.schema_version != 0 && header.schema_version != current {
            let wanted = header.schema_version;
            let text = format!("Wrong schema version, current: {current}, in request: {wanted}");
            let refused = BoxError::client(error::WRONG_SCHEMA_VERSION, text)
                .with("actual", Field::Uint(current))
                .with("expected", Field::Uint(wanted));
            return context.refuse(header.sync, &refused);
        }
        match header.kind {
            kind::CALL | kind::CALL_16 => call(context, &header, body),
            kind::EVAL => eval(context, &header, body),
            kind::PING => encode::ok(context.out(), header.sync, current),
            kind::ID => identify(context, &header, body),
            kind::SELECT | kind::INSERT | kind::REPLACE | kind::UPDATE | kind::DELETE | kind::UPSERT => {
                statement(context, &header, body);
            }
            kind::AUTH => login(context, &header, body),
            kind::BEGIN | kind::COMMIT | kind::ROLLBACK => stream::control(context, &header, body),
            kind::WATCH | kind::UNWATCH | kind::WATCH_ONCE => watch::request(context, &header, body),
            other => {
                let text = format!("Unknown request type {other}");
                let refused = BoxError::client(error::UNKNOWN_REQUEST_TYPE, text);
                context.refuse(header.sync, &refused.with("value", Field::Uint(other.into())));
            }
        }
    }
}

/// ID: what the client can do, and what this server can.
unsafe fn identify(context: &Context, header: &RequestHeader, body: &[u8]) {
    // SAFETY: the context's pointers are live.
    unsafe {
        match Body::of_request(kind::ID, body).and_then(|_| id_body(body)) {
            Ok(id) => {
                (*context.session).features = id.features;
                let version = context.schema_version();
                let method = if (*context.instance).pap { PAP_SHA256 } else { CHAP_SHA1 };
                let method = Some(method.as_bytes());
                encode::id_response(context.out(), header.sync, version, PROTOCOL_VERSION, FEATURES, method);
            }
            Err(broken) => context.refuse(header.sync, &broken.into()),
        }
    }
}

/// A statement on the data: answered by the engine.
unsafe fn statement(context: &Context, header: &RequestHeader, body: &[u8]) {
    // SAFETY: the context's pointers are live; the engine knows no Lua.
    unsafe {
        let body = match Body::of_request(header.kind, body) {
            Ok(body) => body,
            Err(broken) => return context.refuse(header.sync, &broken.into()),
        };
        let made = Statement::from_body(header.kind, &body).and_then(|statement| {
            let Some(statement) = statement else { return Ok(()) };
            may_touch(context, &statement)?;
            let txn = stream::transaction(context, header.stream_id)?;
            let with_formats = (*context.session).features & (1 << feature::DML_TUPLE_EXTENSION) != 0;
            if let Statement::Select(select) = &statement
                && !(&(*context.instance).users).is_open()
                && respond_with_view(context, select, txn, with_formats, header.sync)
            {
                return Ok(());
            }
            let engine = &mut (*context.instance).engine;
            if !with_formats {
                engine.respond(&statement, txn, header.sync, context.out());
            } else {
                engine.respond_with_formats(&statement, txn, header.sync, context.out());
            }
            Ok(())
        });
        if let Err(refused) = made {
            context.refuse(header.sync, &refused);
        }
    }
}

/// Answers a SELECT from a view that shows each user something else. False: it is no such view.
unsafe fn respond_with_view(
    context: &Context,
    select: &Select<'_>,
    txn: Option<TxnId>,
    with_formats: bool,
    sync: u64,
) -> bool {
    // SAFETY: the context's pointers are live; the users and the engine of an instance are apart.
    unsafe {
        let Instance { engine, users, .. } = &mut *context.instance;
        let view = match select.space {
            SpaceRef::Id(id) => Some(id),
            SpaceRef::Name(name) => engine.space_id(name),
        };
        let Some(view) = view.filter(|id| accounts::VIEWS.contains(id)) else { return false };
        let user = &raw const (*context.session).user;
        // Who was dropped meanwhile sees what a user without grants does.
        let nobody = User { id: u32::MAX, ..User::default() };
        let Some(sight) = Sight::of(users.get(&*user).unwrap_or(&nobody), engine) else { return false };
        let sees = |engine: &Engine, row: &[u8]| sight.sees(view, engine, row);
        engine.respond_visible(select, txn, with_formats, &sees, sync, context.out());
    }
    true
}

/// Whether the session's user may work on the space. The views may be read by everybody.
unsafe fn may_touch(context: &Context, statement: &Statement<'_>) -> Result<(), BoxError> {
    // SAFETY: the context's pointers are live.
    unsafe {
        let (instance, user) = (&*context.instance, &(*context.session).user);
        let id = match statement.space() {
            SpaceRef::Id(id) => Some(id),
            SpaceRef::Name(name) => instance.engine.space_id(name),
        };
        // The engine says what there is to say of a space that is not there.
        let Some(name) = id.and_then(|id| instance.engine.space_name(id)) else { return Ok(()) };
        let reads = matches!(statement, Statement::Select(_));
        let is_view = id.is_some_and(|id| accounts::VIEWS.contains(&id));
        let allowed = reads && is_view
            || instance.users.allow(user, |user| {
                let names = if reads { &user.read } else { &user.write };
                names.has(name.as_bytes())
            });
        if allowed {
            return Ok(());
        }
        let access = if reads { "Read" } else { "Write" };
        Err(BoxError::access(access, "space", name, &String::from_utf8_lossy(user)))
    }
}

/// AUTH. A failed login is answered late, whatever it failed for, and logins meanwhile fail with it.
unsafe fn login(context: &Context, header: &RequestHeader, body: &[u8]) {
    // SAFETY: the context's pointers are live; `refuse_login` may raise, and nothing with a destructor is alive then.
    unsafe {
        let body = match Body::of_request(kind::AUTH, body) {
            Ok(body) => body,
            Err(broken) => return context.refuse(header.sync, &broken.into()),
        };
        let user = body.str(key::USER_NAME).unwrap_or_default();
        let session = context.session;
        let users = &(*context.instance).users;
        let known = match proof(&body, user == GUEST, (*session).socket.is_secure()) {
            Err(refused) => return context.refuse(header.sync, &refused),
            Ok(Proof::Guest) => true,
            Ok(Proof::Chap(answer)) => {
                let salt = (&(*session).salt).first_chunk::<20>();
                let proved = salt.is_some_and(|salt| users.verify(user, salt, answer));
                proved && !(*session).refusing
            }
            Ok(Proof::Pap(password)) => users.verify_password(user, password) && !(*session).refusing,
        };
        let hooked = (*context.instance).hooks & hook::AUTH != 0;
        if !known {
            (*session).refusing = true;
        } else if !hooked {
            (*session).user = user.into();
            encode::ok(context.out(), header.sync, context.schema_version());
        }
        if hooked {
            auth_hook(context, user, known, header.sync);
        }
        if !known {
            refuse_login(context, header.sync);
        }
    }
}

/// Starts the fiber that waits and then answers a failed login.
unsafe fn refuse_login(context: &Context, sync: u64) {
    let sl = context.sl;
    // SAFETY: as for `start`.
    unsafe {
        let base = lua_gettop(sl);
        push_from(context, kept::REFUSE);
        lua_pushnumber(sl, (*context.instance).limits.auth_delay);
        let session = context.session;
        let request = Request {
            purpose: Purpose::Refusal,
            session: context.i,
            session_id: (*session).id,
            instance: (*session).instance,
            sync,
            stream: 0,
        };
        launch(context.s, context.hub, sl, lua_gettop(sl) - base, request);
    }
}

/// Runs the on_auth triggers in a fiber of their own. A login that was proved is one when they have ended well.
unsafe fn auth_hook(context: &Context, user: &[u8], known: bool, sync: u64) {
    let sl = context.sl;
    // SAFETY: as for `start`.
    unsafe {
        let session = context.session;
        let base = lua_gettop(sl);
        push_from(context, kept::HOOK);
        lua_pushinteger(sl, (*session).instance as lua_Integer);
        lua_pushinteger(sl, hook::AUTH as lua_Integer);
        lua_pushnumber(sl, (*session).id as lua_Number);
        lua_pushlstring_(sl, (&(*session).peer).as_ptr().cast(), (&(*session).peer).len());
        lua_pushlstring_(sl, user.as_ptr().cast(), user.len());
        lua_pushboolean(sl, c_int::from(known));
        let instance = (*session).instance;
        let request = if known {
            let session_id = (*session).id;
            Request { purpose: Purpose::Login, session: context.i, session_id, instance, sync, stream: 0 }
        } else {
            Request { purpose: Purpose::Call, session: 0, session_id: 0, instance, sync: 0, stream: 0 }
        };
        launch(context.s, context.hub, sl, lua_gettop(sl) - base, request);
        (*session).known = true;
        (*session).login = known.then(|| user.into());
    }
}

unsafe fn call(context: &Context, header: &RequestHeader, body: &[u8]) {
    // SAFETY: the context's pointers are live; the scratch thread has free slots.
    unsafe {
        let request = match named(header.kind, key::FUNCTION_NAME, body) {
            Ok(found) => found,
            Err(broken) => return context.refuse(header.sync, &broken.into()),
        };
        let name = request.name;
        let user = &raw const (*context.session).user;
        if !(&(*context.instance).users).allow(&*user, |user| user.execute.has(name)) {
            let (name, user) = (String::from_utf8_lossy(name), String::from_utf8_lossy(&*user));
            let refused = BoxError::access("Execute", "function", &name, &user);
            return context.refuse(header.sync, &refused);
        }
        let base = lua_gettop(context.sl);
        if !push_function(context, name) {
            lua_settop(context.sl, base);
            let name = String::from_utf8_lossy(name);
            let refused = BoxError::client(error::NO_SUCH_PROC, format!("Procedure '{name}' is not defined"));
            return context.refuse(header.sync, &refused.with("func", Field::Str(&name)));
        }
        let purpose = if header.kind == kind::CALL { Purpose::Call } else { Purpose::Call16 };
        start(context, header, base, &request, purpose);
    }
}

/// Pushes a function by its name and, for `a.b:method`, the object. Paths go through tables; names that contain a dot or
/// a colon themselves are found when the path is not.
unsafe fn push_function(context: &Context, name: &[u8]) -> bool {
    let sl = context.sl;
    // SAFETY: balanced use of a few free slots of the scratch thread; metamethods may raise.
    unsafe {
        if !(&(*context.instance).references).is_empty()
            && let Some(reference) = (&(*context.instance).references).get(name)
        {
            push_from(context, kept::REFERENCES);
            lua_rawgeti_(sl, -1, *reference);
            lua_remove(sl, -2);
            return true;
        }
        push_from(context, kept::FUNCTIONS + (*context.session).instance as c_int);
        let functions = lua_gettop(sl);
        let mut rest = name;
        loop {
            let cut = rest.iter().position(|b| matches!(b, b'.' | b':'));
            let (part, separator) = match cut {
                Some(at) => (rest.get(..at).unwrap_or_default(), rest.get(at).copied()),
                None => (rest, None),
            };
            rest = cut.and_then(|at| rest.get(at + 1..)).unwrap_or_default();
            if separator == Some(b':') && rest.contains(&b':') {
                break;
            }
            lua_pushlstring_(sl, part.as_ptr().cast(), part.len());
            lua_gettable(sl, -2);
            match separator {
                None => return settle_function(context, functions, None),
                Some(b':') => {
                    if lua_type(sl, -1) != LUA_TTABLE && lua_type(sl, -1) != LUA_TUSERDATA {
                        break;
                    }
                    lua_pushlstring_(sl, rest.as_ptr().cast(), rest.len());
                    lua_gettable(sl, -2);
                    return settle_function(context, functions, Some(lua_gettop(sl) - 1));
                }
                _ if lua_type(sl, -1) == LUA_TTABLE => {}
                _ => break,
            }
        }
        lua_settop(sl, functions);
        lua_pushlstring_(sl, name.as_ptr().cast(), name.len());
        lua_rawget_(sl, functions);
        if lua_type(sl, -1) == LUA_TNIL && (name.contains(&b'[') || name.starts_with(b"box.")) {
            lua_settop(sl, functions);
            push_from(context, kept::RESOLVE);
            lua_pushinteger(sl, (*context.session).instance as lua_Integer);
            lua_pushlstring_(sl, name.as_ptr().cast(), name.len());
            let user = &raw const (*context.session).user;
            lua_pushlstring_(sl, (&*user).as_ptr().cast(), (&*user).len());
            lua_call(sl, 3, 2);
            let object = (lua_type(sl, -1) != LUA_TNIL).then(|| lua_gettop(sl));
            lua_pushvalue(sl, -2);
            return settle_function(context, functions, object);
        }
        settle_function(context, functions, None)
    }
}

/// The value on the top, if it can be called, becomes the function at position `to`; the object of a method call and
/// what calls an object that is no function go with it.
unsafe fn settle_function(context: &Context, to: c_int, object: Option<c_int>) -> bool {
    let sl = context.sl;
    // SAFETY: balanced use of free slots.
    unsafe {
        let found = lua_gettop(sl);
        let mut n = 1 + c_int::from(object.is_some());
        if lua_type(sl, found) != LUA_TFUNCTION {
            if lua_type(sl, found) == LUA_TNIL || luaL_getmetafield(sl, found, c"__call".as_ptr()) == 0 {
                return false;
            }
            push_from(context, kept::INVOKE);
            n += 1;
        }
        lua_pushvalue(sl, found);
        if let Some(object) = object {
            lua_pushvalue(sl, object);
        }
        // They are above `to`, so copying them down in order overwrites none that is still needed.
        let first = lua_gettop(sl) - n + 1;
        for k in 0..n {
            lua_pushvalue(sl, first + k);
            lua_replace(sl, to + k);
        }
        lua_settop(sl, to + n - 1);
    }
    true
}

/// Pushes what is at `position` of the kept table.
unsafe fn push_from(context: &Context, position: c_int) {
    // SAFETY: server.lua filled the table before there was a server.
    unsafe {
        (*context.s).push_kept(context.sl, Keep::Server);
        lua_rawgeti_(context.sl, -1, position);
        lua_remove(context.sl, -2);
    }
}

/// Longest expression that is kept compiled, and most of them.
const EVAL_KEPT: usize = 4096;
const EVALS_KEPT: usize = 1024;

unsafe fn eval(context: &Context, header: &RequestHeader, body: &[u8]) {
    let sl = context.sl;
    // SAFETY: the context's pointers are live; the scratch thread has free slots.
    unsafe {
        let request = match named(kind::EVAL, key::EXPR, body) {
            Ok(found) => found,
            Err(broken) => return context.refuse(header.sync, &broken.into()),
        };
        let user = &raw const (*context.session).user;
        if !(*context.instance).eval || !(&(*context.instance).users).allow(&*user, |user| user.eval) {
            let refused = BoxError::access("Execute", "universe", "", &String::from_utf8_lossy(&*user));
            return context.refuse(header.sync, &refused);
        }
        let base = lua_gettop(sl);
        if !push_compiled(context, request.name) {
            // The compiler's message is on the top.
            return reply_error(context.s, context.hub, context.session, sl, header.sync);
        }
        start(context, header, base, &request, Purpose::Call);
    }
}

/// Pushes the function of an expression, compiled before or now. False: the compiler's message was pushed.
unsafe fn push_compiled(context: &Context, expression: &[u8]) -> bool {
    let sl = context.sl;
    // SAFETY: balanced use of free slots; what may raise comes before what is remembered.
    unsafe {
        let evals = &raw mut (*context.hub).evals;
        let reuse = (*context.hub).reuse;
        if reuse && let Some(position) = (&*evals).get(expression) {
            push_from(context, kept::EVALS);
            lua_rawgeti_(sl, -1, *position);
            lua_remove(sl, -2);
            return true;
        }
        if luaL_loadbuffer(sl, expression.as_ptr().cast(), expression.len(), c"=eval".as_ptr()) != 0 {
            return false;
        }
        if reuse && expression.len() <= EVAL_KEPT {
            if (&*evals).len() >= EVALS_KEPT {
                (&mut *evals).clear();
            }
            let position = (&*evals).len() as c_int + 1;
            push_from(context, kept::EVALS);
            lua_pushvalue(sl, -2);
            lua_rawseti_(sl, -2, position);
            lua_settop(sl, -2);
            (&mut *evals).insert(expression.into(), position);
        }
        true
    }
}

/// Starts the fiber of a request: what is above `base` is its function and first arguments, `said` has the others.
unsafe fn start(context: &Context, header: &RequestHeader, base: c_int, said: &Named<'_>, purpose: Purpose) {
    let sl = context.sl;
    // SAFETY: the context's pointers are live. The record is made last: nothing can raise after it.
    unsafe {
        if !(*context.hub).reuse {
            push_from(context, kept::WRAP);
            lua_pushvalue(sl, base + 1);
            lua_call(sl, 1, 1);
            lua_replace(sl, base + 1);
        }
        if !tell_formats(context, header.sync, said.formats) || !push_arguments(context, header.sync, said.args) {
            return;
        }
        let request = Request {
            purpose,
            session: context.i,
            session_id: (*context.session).id,
            instance: (*context.session).instance,
            sync: header.sync,
            stream: header.stream_id,
        };
        launch(context.s, context.hub, sl, lua_gettop(sl) - base, request);
    }
}

/// Moves a function and its arguments, `moved` values on the top of `sl`, to a fiber that serves `request`.
unsafe fn launch(s: *mut State, hub: *mut Hub, sl: *mut lua_State, moved: c_int, request: Request) {
    // SAFETY: the callers run in a protected call on the scratch thread `sl`.
    unsafe {
        let f = spawn(s, sl, moved);
        let session = (*hub).session_of(&request);
        if !session.is_null() {
            (*session).running += 1;
        }
        let instance = (*hub).instance(request.instance);
        if !instance.is_null() {
            (*instance).running += 1;
        }
        if request.stream != 0
            && !session.is_null()
            && let Some(stream) = (&mut (*session).streams).get_mut(&request.stream)
        {
            stream.busy = true;
        }
        let number = (&mut (*hub).requests).insert(request);
        (*f).flags |= flag::SERVED;
        (*f).data.argument = std::ptr::without_provenance_mut(number);
        (*s).cord.enqueue(f);
    }
}

/// Tells the decoder of tuples what formats the arguments bring. False: an error was answered.
#[inline]
unsafe fn tell_formats(context: &Context, sync: u64, formats: Option<&[u8]>) -> bool {
    // SAFETY: as for `start`.
    unsafe {
        if formats.is_none() && !(*context.hub).formats_told {
            return true;
        }
        let sl = context.sl;
        (*context.hub).formats_told = formats.is_some();
        push_from(context, kept::FORMATS);
        match formats {
            Some(bytes) => lua_pushlstring_(sl, bytes.as_ptr().cast(), bytes.len()),
            None => lua_pushnil(sl),
        };
        if lua_pcall(sl, 1, 0, 0) == 0 {
            return true;
        }
        reply_error(context.s, context.hub, context.session, sl, sync);
        false
    }
}

/// Decodes arguments onto the scratch thread. False: an error was answered.
unsafe fn push_arguments(context: &Context, sync: u64, args: &[u8]) -> bool {
    let sl = context.sl;
    // SAFETY: as for `start`; the packet's bytes stay where they are while this request is handled.
    unsafe {
        let mut reader = Reader::new(args);
        let Ok(count) = reader.read_array() else {
            context.refuse(sync, &BoxError::msgpack("packet body"));
            return false;
        };
        let fits = c_int::try_from(count).is_ok_and(|count| lua_checkstack(sl, count.saturating_add(8)) != 0);
        if !fits {
            context.fail(sync, errcode::PROC_LUA, b"too many arguments");
            return false;
        }
        let mut at = reader.position();
        for _ in 0..count {
            match msgpack::decode(sl, args, at, (*context.hub).codec) {
                Ok(next) => at = next,
                Err(failure) => {
                    msgpack::push_decode_error(sl, failure);
                    reply_error(context.s, context.hub, context.session, sl, sync);
                    return false;
                }
            }
        }
        true
    }
}

/// Runs the triggers of `which` for a session in a fiber. False when it could not be started.
pub(super) unsafe fn run_hook(s: *mut State, hub: *mut Hub, i: usize, which: u32) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        let session = (*hub).session(i);
        // What the triggers put into its storage is there for the handlers.
        (*session).known = true;
        let mut hook = HookRun { session, i, which };
        State::protected(s, hook_job, (&raw mut hook).cast())
    }
}

struct HookRun {
    session: *const Session,
    i: usize,
    which: u32,
}

unsafe fn hook_job(sl: *mut lua_State, s: *mut State, argument: *mut c_void) {
    let run = argument.cast::<HookRun>();
    // SAFETY: `run_hook` or `left` passes its record; the session is alive while the job runs.
    unsafe {
        let hub = (*s).server;
        let session = (*run).session;
        let base = lua_gettop(sl);
        (*s).push_kept(sl, Keep::Server);
        lua_rawgeti_(sl, -1, kept::HOOK);
        lua_remove(sl, -2);
        lua_pushinteger(sl, (*session).instance as lua_Integer);
        lua_pushinteger(sl, (*run).which as lua_Integer);
        lua_pushnumber(sl, (*session).id as lua_Number);
        lua_pushlstring_(sl, (&(*session).peer).as_ptr().cast(), (&(*session).peer).len());
        if (*run).which == hook::DISCONNECT {
            // Its object may be let go before the triggers run.
            (*s).push_kept(sl, Keep::Server);
            lua_rawgeti_(sl, -1, kept::SESSIONS);
            lua_remove(sl, -2);
            lua_pushnumber(sl, (*session).id as lua_Number);
            lua_rawget_(sl, -2);
            lua_remove(sl, -2);
        }
        let purpose = if (*run).which == hook::CONNECT { Purpose::Connect } else { Purpose::Call };
        let session_id = if (*run).which == hook::CONNECT { (*session).id } else { 0 };
        let request =
            Request { purpose, session: (*run).i, session_id, instance: (*session).instance, sync: 0, stream: 0 };
        launch(s, hub, sl, lua_gettop(sl) - base, request);
    }
}

/// A session has gone: its on_disconnect triggers run; its Lua object is let go when the last of its requests has ended.
pub(super) unsafe fn left(s: *mut State, hub: *mut Hub, session: &Session) {
    // SAFETY: the caller's contract.
    unsafe {
        let instance = (*hub).instance(session.instance);
        if !instance.is_null() && (*instance).hooks & hook::DISCONNECT != 0 && session.phase != Phase::Connecting {
            let mut run = HookRun { session, i: usize::MAX, which: hook::DISCONNECT };
            State::protected(s, hook_job, (&raw mut run).cast());
        }
        if session.known && session.running > 0 {
            (&mut (*hub).departed).insert(session.id, session.running);
        } else if session.known {
            forget(s, session.id);
        }
    }
}

/// A request of a client that has gone has ended.
#[cold]
unsafe fn outlived(s: *mut State, hub: *mut Hub, id: u64) {
    // SAFETY: the caller's contract.
    unsafe {
        let Some(running) = (&mut (*hub).departed).get_mut(&id) else { return };
        *running -= 1;
        if *running == 0 {
            (&mut (*hub).departed).remove(&id);
            forget(s, id);
        }
    }
}

unsafe fn forget(s: *mut State, id: u64) {
    let mut id = id as f64;
    // SAFETY: the caller's contract.
    unsafe { State::protected(s, forget_job, (&raw mut id).cast()) };
}

/// Lets the object go that scripts have of a session.
unsafe fn forget_job(sl: *mut lua_State, s: *mut State, argument: *mut c_void) {
    // SAFETY: `forget` passes the session's id.
    unsafe {
        (*s).push_kept(sl, Keep::Server);
        lua_rawgeti_(sl, -1, kept::SESSIONS);
        lua_pushnumber(sl, *argument.cast::<f64>());
        lua_pushnil(sl);
        lua_rawset(sl, -3);
    }
}

/// A fiber that served a request has ended; its results, or its error, are on its thread.
///
/// # Safety
/// Called by the scheduler with the finished fiber.
pub(crate) unsafe fn served(s: *mut State, f: LuaFiber) {
    // SAFETY: the fiber's number was given by `launch`.
    unsafe {
        let hub = (*s).server;
        if hub.is_null() {
            return;
        }
        let number = (*f).data.argument.addr();
        (*f).data.argument = std::ptr::null_mut();
        let Some(request) = (&mut (*hub).requests).try_remove(number) else { return };
        let session = (*hub).session_of(&request);
        (*hub).request_ended(request.instance);
        if session.is_null() {
            return outlived(s, hub, request.session_id);
        }
        (*session).running -= 1;
        if request.stream != 0
            && let Some(stream) = (&mut (*session).streams).get_mut(&request.stream)
        {
            stream.busy = false;
            (&mut (*session).ready).push(request.stream);
        }
        if request.purpose == Purpose::Refusal {
            (*session).refusing = false;
        }
        let l = (*f).data.l;
        let login = if request.purpose == Purpose::Login { (*session).login.take() } else { None };
        if (*f).data.status != 0 {
            answer_error(s, session, l, request.sync);
            if request.purpose == Purpose::Connect {
                (*session).phase = Phase::Closing;
            }
        } else if request.purpose == Purpose::Connect {
            return open(hub, request.session);
        } else if let Some(user) = login {
            (*session).user = user;
            let version = (&(*(*hub).instance(request.instance)).engine).schema_version();
            encode::ok(&mut (*session).output, request.sync, version);
        } else {
            answer(s, hub, session, l, &request);
        }
        (*hub).list(request.session);
    }
}

/// Encodes the results on the finished thread `l`.
unsafe fn answer(s: *mut State, hub: *mut Hub, session: *mut Session, l: *mut lua_State, request: &Request) {
    // SAFETY: the thread has ended, so its stack may be used; `encode` runs no Lua code and its callers' room is checked.
    unsafe {
        let instance = (*hub).instance(request.instance);
        let version = (&(*instance).engine).schema_version();
        (*hub).lend_output(session);
        let count = lua_gettop(l);
        let room = lua_checkstack(l, 40) != 0;
        let old = request.purpose == Purpose::Call16;
        let formats = formats_of(hub, session, old);
        let values = |out: &mut Vec<u8>| {
            if !room {
                return Err(EncodeError::Memory);
            }
            for at in 1..=count {
                if old && lua_type(l, at) != LUA_TTABLE {
                    mp::put_array(out, 1);
                }
                msgpack::encode_with(l, at, out, (*hub).codec, formats)?;
            }
            Ok(count as u32)
        };
        let made = finish(session, request, version, formats, values);
        if made.is_err() {
            answer_slowly(s, session, l, request, version);
        }
    }
}

/// Where the formats of the tuples among the results go; null when the client wants them as arrays.
unsafe fn formats_of(hub: *mut Hub, session: *mut Session, old: bool) -> *mut Formats {
    // SAFETY: the callers pass a live hub and session.
    unsafe {
        if old || (*session).features & (1 << feature::CALL_RET_TUPLE_EXTENSION) == 0 {
            return std::ptr::null_mut();
        }
        (&mut (*hub).formats).clear();
        &raw mut (*hub).formats
    }
}

/// Writes the response whose values `values` appends. Clients that know tuples are told their formats, if only that there
/// are none.
unsafe fn finish<E>(
    session: *mut Session,
    request: &Request,
    version: u64,
    formats: *mut Formats,
    values: impl FnOnce(&mut Vec<u8>) -> Result<u32, E>,
) -> Result<(), E> {
    // SAFETY: the callers pass a live session, and formats that are live or null.
    unsafe {
        let out = &mut (*session).output;
        if (*session).features & (1 << feature::CALL_RET_TUPLE_EXTENSION) == 0 {
            return encode::data(out, kind::OK, request.sync, version, values);
        }
        encode::data_with_formats(out, kind::OK, request.sync, version, values, |out| match formats.as_ref() {
            Some(formats) => formats.write(out),
            None => out.push(0x80),
        })
    }
}

/// Results that only Lua code can encode.
struct Slow {
    l: *mut lua_State,
    session: *mut Session,
    request: *const Request,
    version: u64,
}

#[cold]
unsafe fn answer_slowly(s: *mut State, session: *mut Session, l: *mut lua_State, request: &Request, version: u64) {
    // SAFETY: as for `answer`.
    unsafe {
        let mark = (&(*session).output).len();
        let mut slow = Slow { l, session, request, version };
        let codec = (*(*s).server).codec.cast_mut();
        // Clients that do not know errors as values get their texts.
        let known = (*session).features & (1 << feature::ERROR_EXTENSION) != 0;
        let before = msgpack::errors_as_ext(codec, None);
        msgpack::errors_as_ext(codec, Some(before && known));
        let made = State::protected(s, slow_job, (&raw mut slow).cast());
        msgpack::errors_as_ext(codec, Some(before));
        if !made {
            (&mut (*session).output).truncate(mark);
            error((*s).server, session, request.sync, errcode::PROC_LUA, b"the results could not be encoded");
        }
    }
}

unsafe fn slow_job(sl: *mut lua_State, s: *mut State, argument: *mut c_void) {
    let slow = argument.cast::<Slow>();
    // SAFETY: runs under a protected call. Values are copied to the scratch thread, where errors may be raised; each is
    // encoded to a string there, and the strings are collected before the output is touched.
    unsafe {
        let (l, hub) = ((*slow).l, (*s).server);
        let count = lua_gettop(l);
        let base = lua_gettop(sl);
        luaL_checkstack_(sl, count + 8, c"too many results".as_ptr());
        let request = (*slow).request;
        let old = (*request).purpose == Purpose::Call16;
        let formats = formats_of(hub, (*slow).session, old);
        for at in 1..=count {
            lua_pushvalue(l, at);
            lua_xmove(l, sl, 1);
            if let Err(failure) = msgpack::encode_to_string_with(sl, -1, (*hub).codec, formats) {
                if failure == EncodeError::Lua && is_refused_wait(s, sl) {
                    lua_settop(sl, base);
                    return serialize_in_fiber(s, sl, l, &*request);
                }
                msgpack::push_encode_error(sl, failure);
                return reply_error(s, hub, (*slow).session, sl, (*(*slow).request).sync);
            }
            lua_remove(sl, -2);
        }
        let values = |out: &mut Vec<u8>| {
            for at in base + 1..=base + count {
                let bytes = bytes_at(sl, at);
                let is_array = bytes.first().is_some_and(|b| mp::family(*b) == Some(mp::Family::Array));
                if old && !is_array {
                    mp::put_array(out, 1);
                }
                out.extend_from_slice(bytes);
            }
            Ok(count as u32)
        };
        let _: Result<(), ()> = finish((*slow).session, &*request, (*slow).version, formats, values);
    }
}

/// How the text of a wait ends that is refused while responses are encoded: see `Refused::Callback`.
const REFUSED_WAIT: &[u8] = b"cannot yield inside a callback of the scheduler";

/// Whether the value on the top is what a wait raises where nothing may wait.
unsafe fn is_refused_wait(s: *mut State, sl: *mut lua_State) -> bool {
    // SAFETY: the callers run in a protected call on the scratch thread.
    unsafe {
        let top = lua_gettop(sl);
        (*s).push_kept(sl, Keep::Server);
        lua_rawgeti_(sl, -1, kept::DESCRIBE);
        lua_pushvalue(sl, top);
        lua_call(sl, 1, 2);
        let refused = bytes_at(sl, -1).ends_with(REFUSED_WAIT);
        lua_settop(sl, top);
        refused
    }
}

/// Has a fiber encode results whose `__serialize` functions wait; then they are answered as its own.
unsafe fn serialize_in_fiber(s: *mut State, sl: *mut lua_State, l: *mut lua_State, request: &Request) {
    // SAFETY: as for `slow_job`, which made room for the results.
    unsafe {
        (*s).push_kept(sl, Keep::Server);
        lua_rawgeti_(sl, -1, kept::SERIALIZE);
        lua_remove(sl, -2);
        let count = lua_gettop(l);
        for at in 1..=count {
            lua_pushvalue(l, at);
            lua_xmove(l, sl, 1);
        }
        launch(s, (*s).server, sl, count + 1, *request);
    }
}

/// The bytes of the string at `idx`, valid while it is there.
pub(super) unsafe fn bytes_at<'a>(l: *mut lua_State, idx: c_int) -> &'a [u8] {
    // SAFETY: the callers pass strings.
    unsafe {
        let mut len = 0;
        let at = lua_tolstring(l, idx, &raw mut len);
        if at.is_null() { &[] } else { std::slice::from_raw_parts(at.cast::<u8>(), len) }
    }
}

struct Failed {
    l: *mut lua_State,
    session: *mut Session,
    sync: u64,
}

/// Answers with the error on the top of the finished thread `l`.
unsafe fn answer_error(s: *mut State, session: *mut Session, l: *mut lua_State, sync: u64) {
    // SAFETY: as for `answer`.
    unsafe {
        let mark = (&(*session).output).len();
        let mut failed = Failed { l, session, sync };
        if !State::protected(s, failed_job, (&raw mut failed).cast()) {
            (&mut (*session).output).truncate(mark);
            error((*s).server, session, sync, errcode::PROC_LUA, b"the error could not be encoded");
        }
    }
}

unsafe fn failed_job(sl: *mut lua_State, s: *mut State, argument: *mut c_void) {
    let failed = argument.cast::<Failed>();
    // SAFETY: runs under a protected call; a copy of the error is moved.
    unsafe {
        lua_pushvalue((*failed).l, -1);
        lua_xmove((*failed).l, sl, 1);
        reply_error(s, (*s).server, (*failed).session, sl, (*failed).sync);
    }
}

/// Answers with the error value on the top of the scratch thread, which is popped. May raise.
unsafe fn reply_error(s: *mut State, hub: *mut Hub, session: *mut Session, sl: *mut lua_State, sync: u64) {
    // SAFETY: the callers run in a protected call on the scratch thread.
    unsafe {
        let top = lua_gettop(sl) - 1;
        (*s).push_kept(sl, Keep::Server);
        lua_rawgeti_(sl, -1, kept::DESCRIBE);
        lua_pushvalue(sl, top + 1);
        lua_call(sl, 1, 3);
        let code = lua_tonumber(sl, -3) as u32;
        let (message, stack) = (bytes_at(sl, -2), bytes_at(sl, -1));
        let instance = (*hub).instance((*session).instance);
        (*instance).stat.errors += 1;
        let version = (&(*instance).engine).schema_version();
        encode::error_raw(&mut (*session).output, sync, version, code, message, stack);
        lua_settop(sl, top);
    }
}

/// What became of a pushed value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// No request runs.
    Nowhere,
    /// The client reads too slowly: try later.
    Later,
    /// It is on its way, or its client has gone.
    Done,
}

/// Sends a value to the client of the running request before its response.
///
/// # Safety
/// `l` runs one of our functions; the value is at position 1. Errors of encoding are raised in it.
pub(super) unsafe fn push(s: *mut State, l: *mut lua_State) -> Pushed {
    // SAFETY: the caller's contract.
    unsafe {
        let hub = (*s).server;
        let Some(request) = running(s) else { return Pushed::Nowhere };
        let session = (*hub).session_of(&request);
        if session.is_null() {
            return Pushed::Done;
        }
        if (*session).unsent() > (*(*hub).instance(request.instance)).limits.unread {
            return Pushed::Later;
        }
        let codec: *const Codec = (*hub).codec;
        if let Err(failure) = msgpack::encode_to_string(l, 1, codec) {
            msgpack::push_encode_error(l, failure);
            lua_error(l);
        }
        // Encoding may have run Lua code: the session is looked up anew.
        let session = (*hub).session_of(&request);
        if !session.is_null() {
            let bytes = bytes_at(l, -1);
            let version = (&(*(*hub).instance(request.instance)).engine).schema_version();
            let out = &raw mut (*session).output;
            let _: Result<(), ()> = encode::data(&mut *out, kind::CHUNK, request.sync, version, |out| {
                out.extend_from_slice(bytes);
                Ok(1)
            });
            (*hub).list(request.session);
        }
        Pushed::Done
    }
}

/// The request the running fiber serves.
pub(super) unsafe fn running(s: *mut State) -> Option<Request> {
    // SAFETY: there is a current fiber while Lua code runs.
    unsafe {
        let f = (*s).cord.current;
        let hub = (*s).server;
        if f.is_null() || hub.is_null() || !(*f).is(flag::SERVED) {
            return None;
        }
        (&(*hub).requests).get((*f).data.argument.addr()).copied()
    }
}
