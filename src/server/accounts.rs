//! Users, grants and functions as clients see them in the system spaces, and what of these spaces each user sees.
//!
//! Source: `src/box/sysview.c` and `src/box/user.cc`, Tarantool 3.9-dev.

use super::engine::{Engine, Row, Tuple, field};
use super::hub::Instance;
use super::user::{Names, User};
use crate::iproto::mp::Reader;
use rustc_hash::FxHashSet;

/// Ids of the views whose rows depend on who reads them.
const VSPACE: u32 = 281;
const VSEQUENCE: u32 = 286;
const VINDEX: u32 = 289;
const VFUNC: u32 = 297;
const VUSER: u32 = 305;
const VPRIV: u32 = 313;
const VSPACE_SEQUENCE: u32 = 341;
/// The views everybody may read: the ones above and the collations.
pub const VIEWS: [u32; 8] = [277, VSPACE, VSEQUENCE, VINDEX, VFUNC, VUSER, VPRIV, VSPACE_SEQUENCE];
/// Tables that the views of users, grants and functions are views of.
const FUNC: u32 = 296;
const USER: u32 = 304;
const PRIV: u32 = 312;

/// Ids of roles, and of the user that owns everything.
const PUBLIC: u32 = 2;
const SUPER: u32 = 31;
const ADMIN: u64 = 1;
/// Rights as `_priv` counts them.
const READ: u64 = 1;
const WRITE: u64 = 2;
const EXECUTE: u64 = 4;
const SESSION_USAGE: u64 = 24;

/// Makes the rows of `_user`, `_priv`, `_func` and their views anew.
pub fn show(instance: &mut Instance) {
    // Their numbers are their places in the table of references.
    let mut functions: Vec<_> = instance.references.iter().map(|(name, place)| (&**name, *place as u64)).collect();
    functions.sort_by_key(|(_, id)| *id);
    let rows = functions.iter().map(|(name, id)| function_row(*id, name)).collect();
    instance.engine.replace_rows([FUNC, VFUNC], rows);
    let mut users: Vec<_> = instance.users.iter().collect();
    users.sort_by_key(|(_, user)| user.id);
    let mut rows = Vec::new();
    for (id, name, kind) in [(1, &b"admin"[..], "user"), (PUBLIC, b"public", "role"), (3, b"replication", "role")] {
        if users.iter().all(|(_, user)| user.id != id) {
            rows.push(user_row(id, name, kind));
        }
    }
    rows.push(user_row(SUPER, b"super", "role"));
    rows.extend(users.iter().map(|(name, user)| user_row(user.id, name, "user")));
    instance.engine.replace_rows([USER, VUSER], rows);
    let mut rows: Vec<Tuple> = VIEWS.map(|view| grant(PUBLIC, "space", |row| row.uint(view.into()), READ)).into();
    for (_, user) in users {
        grants(&mut rows, user, &instance.engine, &functions);
    }
    instance.engine.replace_rows([PRIV, VPRIV], rows);
}

fn user_row(id: u32, name: &[u8], kind: &str) -> Tuple {
    let row = Row::new(7).uint(id.into()).uint(ADMIN).bytes(name).str(kind);
    row.map(0).array(0).uint(0).done()
}

fn function_row(id: u64, name: &[u8]) -> Tuple {
    let row = Row::new(20).uint(id).uint(ADMIN).bytes(name).uint(0).str("LUA").str("").str("function").array(0);
    let row = row.str("any").str("none").str("none").bool(false).bool(false).bool(true);
    row.array(1).str("LUA").map(0).str("").str("").str("").array(0).done()
}

fn grant(user: u32, kind: &str, object: impl FnOnce(Row) -> Row, rights: u64) -> Tuple {
    object(Row::new(5).uint(ADMIN).uint(user.into()).str(kind)).uint(rights).done()
}

/// The rows of one user's grants.
fn grants(rows: &mut Vec<Tuple>, user: &User, engine: &Engine, functions: &[(&[u8], u64)]) {
    let mut add = |kind: &str, object: &dyn Fn(Row) -> Row, rights| rows.push(grant(user.id, kind, object, rights));
    add("role", &|row| row.uint(PUBLIC.into()), EXECUTE);
    add("universe", &|row| row.uint(0), SESSION_USAGE);
    if user.is_mighty() {
        return add("role", &|row| row.uint(SUPER.into()), EXECUTE);
    }
    if user.eval {
        add("lua_eval", &|row| row.str(""), EXECUTE);
    }
    match &user.execute {
        Names::None => {}
        Names::All => {
            add("function", &|row| row.str(""), EXECUTE);
            add("lua_call", &|row| row.str(""), EXECUTE);
        }
        Names::Some(names) => {
            for name in names {
                match functions.iter().find(|(known, _)| *known == &**name) {
                    Some((_, id)) => add("function", &|row| row.uint(*id), EXECUTE),
                    None => add("lua_call", &|row| row.bytes(name), EXECUTE),
                }
            }
        }
    }
    let all = |names: &Names, right| if matches!(names, Names::All) { right } else { 0 };
    let everywhere = all(&user.read, READ) | all(&user.write, WRITE);
    if everywhere != 0 {
        add("space", &|row| row.str(""), everywhere);
    }
    for id in engine.user_spaces() {
        let name = engine.space_name(id).unwrap_or_default().as_bytes();
        let right = |names: &Names, right| if matches!(names, Names::Some(_)) && names.has(name) { right } else { 0 };
        let rights = right(&user.read, READ) | right(&user.write, WRITE);
        if rights != 0 {
            add("space", &|row| row.uint(id.into()), rights);
        }
    }
}

/// What a user sees of the views.
pub struct Sight<'a> {
    user: &'a User,
    /// Spaces whose definitions are visible; nothing: all of them.
    spaces: Option<FxHashSet<u32>>,
}

impl<'a> Sight<'a> {
    /// What `user` sees of `engine`'s views; nothing when that is all there is.
    pub fn of(user: &'a User, engine: &Engine) -> Option<Self> {
        if user.is_mighty() {
            return None;
        }
        let all = matches!(user.read, Names::All) || matches!(user.write, Names::All);
        let is_visible = |id: &u32| {
            let name = engine.space_name(*id).unwrap_or_default().as_bytes();
            user.read.has(name) || user.write.has(name)
        };
        let spaces = (!all).then(|| engine.user_spaces().filter(is_visible).chain(VIEWS).collect());
        Some(Sight { user, spaces })
    }

    /// Whether a row of the view of that id is visible.
    pub fn sees(&self, view: u32, engine: &Engine, row: &[u8]) -> bool {
        let number = |n| field(row, n).and_then(|raw| Reader::new(raw).read_uint().ok());
        let text = |n| field(row, n).and_then(|raw| Reader::new(raw).read_str().ok()).unwrap_or_default();
        let space = |id: Option<u64>| match &self.spaces {
            None => true,
            Some(spaces) => id.and_then(|id| u32::try_from(id).ok()).is_some_and(|id| spaces.contains(&id)),
        };
        let own = Some(u64::from(self.user.id));
        match view {
            VSPACE | VINDEX | VSPACE_SEQUENCE => space(number(0)),
            // The sequence of a space has its name.
            VSEQUENCE => {
                let name = text(2).strip_suffix(b"_seq").unwrap_or_default();
                space(engine.space_id(name).map(u64::from))
            }
            VFUNC => self.user.execute.has(text(2)),
            VUSER => number(0) == own || number(0) == Some(PUBLIC.into()),
            VPRIV => number(0) == own || number(1) == own,
            _ => true,
        }
    }
}
