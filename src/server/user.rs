//! Users of a server: their passwords' hashes and what they may do.

use crate::iproto::auth::{self, Scramble};
use rustc_hash::{FxHashMap, FxHashSet};

/// The user every client is before it logs in.
pub const GUEST: &[u8] = b"guest";

/// Names something is allowed for.
#[derive(Debug, Clone, Default)]
pub enum Names {
    /// None.
    #[default]
    None,
    /// All there are.
    All,
    /// These.
    Some(FxHashSet<Box<[u8]>>),
}

impl Names {
    /// Whether `name` is among them.
    pub fn has(&self, name: &[u8]) -> bool {
        match self {
            Names::None => false,
            Names::All => true,
            Names::Some(names) => names.contains(name),
        }
    }

    /// Adds a name.
    pub fn add(&mut self, name: &[u8]) {
        match self {
            Names::All => {}
            Names::Some(names) => drop(names.insert(name.into())),
            Names::None => *self = Names::Some([Box::from(name)].into_iter().collect()),
        }
    }
}

/// What a server keeps of a password. It decides by which method the user logs in.
#[derive(Debug, Clone)]
pub enum Secret {
    /// For `chap-sha1`.
    Chap(Scramble),
    /// For `pap-sha256`: salt and hash.
    Pap([u8; 16], [u8; 32]),
}

impl Secret {
    /// For `chap-sha1`.
    pub fn chap(password: &[u8]) -> Self {
        Secret::Chap(auth::password_hash(password))
    }

    /// For `pap-sha256`. The salt is to be random.
    pub fn pap(salt: [u8; 16], password: &[u8]) -> Self {
        Secret::Pap(salt, auth::salted_hash(&salt, password))
    }
}

/// What a user may do.
#[derive(Debug, Clone, Default)]
pub struct User {
    /// Its number in `_user`: given by [`Users::set`].
    pub id: u32,
    /// What is kept of the password, without which nobody logs in as this user.
    pub secret: Option<Secret>,
    /// Functions that may be called.
    pub execute: Names,
    /// Spaces that may be read.
    pub read: Names,
    /// Spaces that may be written.
    pub write: Names,
    /// Whether expressions may be evaluated, where the server allows that.
    pub eval: bool,
}

impl User {
    /// A user who may do everything.
    pub fn mighty(secret: Option<Secret>) -> Self {
        User { id: 0, secret, execute: Names::All, read: Names::All, write: Names::All, eval: true }
    }

    /// Whether nothing is kept from this user.
    pub fn is_mighty(&self) -> bool {
        self.eval && [&self.execute, &self.read, &self.write].iter().all(|names| matches!(names, Names::All))
    }
}

/// The users of one server.
#[derive(Debug)]
pub struct Users {
    by_name: FxHashMap<Box<[u8]>, User>,
    /// The number of the next user; those below are Tarantool's own users and roles.
    next_id: u32,
    /// Everybody may do everything: nothing is looked up.
    open: bool,
}

impl Default for Users {
    fn default() -> Self {
        let mut users = Users { by_name: FxHashMap::default(), next_id: 32, open: true };
        users.set(GUEST, User::mighty(Some(Secret::chap(b""))));
        users
    }
}

impl Users {
    /// Adds a user, or replaces what is known of one.
    pub fn set(&mut self, name: &[u8], mut user: User) {
        user.id = match (self.by_name.get(name), name) {
            (Some(known), _) => known.id,
            (None, GUEST) => 0,
            (None, b"admin") => 1,
            (None, _) => {
                self.next_id += 1;
                self.next_id - 1
            }
        };
        self.by_name.insert(name.into(), user);
        self.open = self.by_name.values().all(User::is_mighty);
    }

    /// Removes a user. Its sessions may do nothing from now on.
    pub fn remove(&mut self, name: &[u8]) {
        self.by_name.remove(name);
        self.open = false;
    }

    /// All users.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &User)> {
        self.by_name.iter().map(|(name, user)| (&**name, user))
    }

    /// A user.
    pub fn get(&self, name: &[u8]) -> Option<&User> {
        self.by_name.get(name)
    }

    /// Whether everybody may do everything.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// A user.
    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut User> {
        self.open = false;
        self.by_name.get_mut(name)
    }

    /// Whether the answer to the salt proves that the client is `name`. Takes as long for an unknown user.
    pub fn verify(&self, name: &[u8], salt: &[u8; 20], answer: &Scramble) -> bool {
        let hash = match self.secret(name) {
            Some(Secret::Chap(hash)) => Some(*hash),
            _ => None,
        };
        auth::verify(salt, answer, &hash.unwrap_or_default()) && hash.is_some()
    }

    /// Whether `password` is that of `name`, who logs in with `pap-sha256`. Takes as long for an unknown user.
    pub fn verify_password(&self, name: &[u8], password: &[u8]) -> bool {
        let (known, salt, hash) = match self.secret(name) {
            Some(Secret::Pap(salt, hash)) => (true, *salt, *hash),
            _ => (false, [0; 16], [0; 32]),
        };
        auth::verify_password(&salt, password, &hash) && known
    }

    fn secret(&self, name: &[u8]) -> Option<&Secret> {
        self.by_name.get(name)?.secret.as_ref()
    }

    /// Whether `name` may do what `allows` asks of a user.
    #[inline]
    pub fn allow(&self, name: &[u8], allows: impl FnOnce(&User) -> bool) -> bool {
        self.open || self.by_name.get(name).is_some_and(allows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_may_do_everything_until_somebody_is_restricted() {
        let mut users = Users::default();
        assert!(users.allow(b"nobody", |_| false));
        users.set(b"alice", User::default());
        assert!(users.allow(GUEST, |user| user.execute.has(b"f")));
        assert!(!users.allow(b"alice", |user| user.execute.has(b"f")));
        assert!(!users.allow(b"nobody", |_| true));
    }

    #[test]
    fn names_are_added_one_by_one() {
        let mut names = Names::default();
        assert!(!names.has(b"a"));
        names.add(b"a");
        names.add(b"b");
        assert!(names.has(b"a") && names.has(b"b") && !names.has(b"c"));
    }

    #[test]
    fn a_password_is_proved_by_its_scramble() {
        let mut users = Users::default();
        users.set(b"alice", User::mighty(Some(Secret::chap(b"secret"))));
        users.set(b"locked", User::mighty(None));
        let salt = [7; 20];
        assert!(users.verify(b"alice", &salt, &auth::scramble(&salt, b"secret")));
        assert!(users.verify(GUEST, &salt, &auth::scramble(&salt, b"")));
        for (name, password) in [(&b"alice"[..], &b"wrong"[..]), (b"locked", b""), (b"nobody", b"")] {
            assert!(!users.verify(name, &salt, &auth::scramble(&salt, password)));
        }
    }

    #[test]
    fn each_user_has_one_method() {
        let mut users = Users::default();
        users.set(b"alice", User::mighty(Some(Secret::pap([3; 16], b"secret"))));
        users.set(b"bob", User::mighty(Some(Secret::chap(b"secret"))));
        assert!(users.verify_password(b"alice", b"secret"));
        for (name, password) in [(&b"alice"[..], &b"Secret"[..]), (b"bob", b"secret"), (b"nobody", b"")] {
            assert!(!users.verify_password(name, password));
        }
        let salt = [7; 20];
        assert!(!users.verify(b"alice", &salt, &auth::scramble(&salt, b"secret")));
    }
}
