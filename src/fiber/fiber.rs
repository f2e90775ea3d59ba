//! One fiber's record. Records are never unmapped, only reused: an old handle still points at one and sees by the id that
//! it serves another fiber now, or nobody.

use super::timer;
use super::trigger::TriggerList;
use super::wait::{Link, WaitList};
use super::{Body, runner::Runner};
use crate::sys::stack::Place;

/// A pointer to a record, valid as long as the scheduler.
pub type FiberPtr<B> = *mut Fiber<B>;

/// A bit in two halves of a word: setting or clearing it takes the whole word. The compiler would write a single byte, and
/// a processor that reads the word soon after would wait until that byte is in its cache.
const fn wide(bit: u32) -> u32 {
    bit | bit << 16
}

/// Reasons to leave the fast path when a fiber is resumed.
pub mod attention {
    /// Cancelled (sticky).
    pub const CANCELLED: u32 = super::wide(1);
    /// Its timer fired before anything else woke it.
    pub const TIMED_OUT: u32 = super::wide(2);
    /// It owns the C stack it is suspended on.
    pub const STACK: u32 = super::wide(4);
    /// It is the main fiber: the program's own stack.
    pub const MAIN: u32 = super::wide(8);
    /// It is on a wait list.
    pub const LINKED: u32 = super::wide(16);
    /// Its timer is armed.
    pub const TIMER: u32 = super::wide(32);
    /// Somebody meant it: a cond signal, a channel hand-over, an event of a descriptor.
    pub const SIGNALLED: u32 = super::wide(64);
    /// The body wants to do something before it runs.
    pub const BODY: u32 = super::wide(128);
    /// The main fiber must raise "interrupted!".
    pub const INTERRUPTED: u32 = super::wide(256);
    /// The main fiber must raise the deadlock error.
    pub const DEADLOCK: u32 = super::wide(512);
}

/// What a fiber is or has.
pub mod flag {
    /// In the ready queue, or behind a child it has just created.
    pub const READY: u32 = super::wide(1);
    /// Its result waits for `join`.
    pub const JOINABLE: u32 = super::wide(2);
    /// Its function has ended.
    pub const DEAD: u32 = super::wide(4);
    /// Made by the library: `cancel` does not touch it.
    pub const SYSTEM: u32 = super::wide(8);
    /// Its function has started.
    pub const STARTED: u32 = super::wide(16);
    /// Its on_stop triggers run.
    pub const STOPPING: u32 = super::wide(32);
    /// It has a storage table.
    pub const STORAGE: u32 = super::wide(64);
    /// Somebody has taken its result.
    pub const JOINED: u32 = super::wide(128);
    /// Its handle is known to Lua.
    pub const HANDLE: u32 = super::wide(256);
    /// It serves a request: the body's hook takes its results when it ends.
    pub const SERVED: u32 = super::wide(512);
}

/// What a fiber waits for: decides what its wait returns, and what the deadlock report says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Wait {
    /// It does not wait, or has not started.
    None,
    /// `yield`: in the ready queue.
    Yield,
    /// `create`: behind its child.
    Create,
    /// A deadline.
    Sleep,
    /// A cond.
    Cond,
    /// Room in a channel.
    Put,
    /// A message of a channel.
    Get,
    /// The end of another fiber.
    Join,
    /// A descriptor.
    Io,
    /// The address of a name.
    Resolve,
    /// A reply; its values are put on its stack before it is woken.
    Request,
    /// A bare suspension: only an explicit wakeup ends it.
    Suspend,
}

impl Wait {
    /// For people.
    pub fn describe(self) -> &'static str {
        match self {
            Wait::None => "not started",
            Wait::Yield => "its turn",
            Wait::Create => "its child's first wait",
            Wait::Sleep => "a deadline",
            Wait::Cond => "a cond",
            Wait::Put => "room in a channel",
            Wait::Get => "a message of a channel",
            Wait::Join => "the end of another fiber",
            Wait::Io => "a descriptor",
            Wait::Resolve => "the address of a name",
            Wait::Request => "a reply",
            Wait::Suspend => "a wakeup",
        }
    }
}

/// One fiber. The first line of cache is what a switch touches.
#[repr(C, align(64))]
pub struct Fiber<B: Body> {
    /// Reasons to leave the fast path: [`attention`].
    pub attention: u32,
    /// What it is: [`flag`].
    pub flags: u32,
    /// Context switches so far.
    pub csw: u64,
    /// What it waits for.
    pub wait: Wait,
    /// Events of a descriptor, while and after it waits for one.
    pub events: u8,
    /// Where it is in the cord's list of records.
    pub slot: u32,
    /// What the body keeps here.
    pub data: B::Data,
    /// Its number, from 101 on; 0 in a record that serves nobody.
    pub id: u64,
    /// The runner whose stack it keeps, while it is stuck.
    pub runner: *mut Runner<B>,
    /// Where on that stack it waits.
    pub place: Place,
    /// Its place on a wait list.
    pub link: Link<B>,
    /// Its armed timer.
    pub timer: timer::Key,
    /// Who waits for its end.
    pub joiners: WaitList<B>,
    /// Run once when it ends.
    pub on_stop: TriggerList,
    /// Run before each of its switches.
    pub on_yield: TriggerList,
    /// What few fibers have of their own.
    pub own: Option<Box<Own>>,
}

/// What a fiber may have of its own.
#[derive(Default)]
pub struct Own {
    /// Its name, if it is not the default "lua".
    pub name: Option<Box<[u8]>>,
    /// Longest permitted run without a yield, seconds: warn and err, if not the cord's.
    pub max_slice: Option<(f64, f64)>,
}

/// The name of a fiber nobody named.
pub const DEFAULT_NAME: &[u8] = b"lua";
/// The longest name, in bytes.
pub const NAME_MAX: usize = 255;

impl<B: Body> Fiber<B> {
    /// A blank record.
    pub fn blank(slot: u32) -> Self {
        Fiber {
            attention: 0,
            flags: 0,
            data: B::Data::default(),
            csw: 0,
            id: 0,
            wait: Wait::None,
            events: 0,
            runner: std::ptr::null_mut(),
            place: Place::NOWHERE,
            link: Link::default(),
            timer: (0, 0),
            joiners: WaitList::new(),
            on_stop: TriggerList::default(),
            on_yield: TriggerList::default(),
            own: None,
            slot,
        }
    }

    /// Its name's bytes.
    pub fn name(&self) -> &[u8] {
        self.own.as_deref().and_then(|own| own.name.as_deref()).unwrap_or(DEFAULT_NAME)
    }

    /// What it has of its own, to be written.
    pub fn own_mut(&mut self) -> &mut Own {
        self.own.get_or_insert_default()
    }

    /// Whether any of `bits` is set.
    #[inline(always)]
    pub fn is(&self, bits: u32) -> bool {
        self.flags & bits != 0
    }
}
