/*
 * cord.h: fibers for C, C++ and Rust code, and for LuaJIT's FFI.
 *
 * The functions are exported by cord.so, the file `require 'cord'` loads. They act on the scheduler of the calling OS
 * thread: the Lua state in which cord was loaded there. With none, or with several Lua states on one thread, they refuse
 * (CORD_SCHEDULER). A native module looks them up in the loaded library (see docs/c-api.md); Lua code uses
 * require('cord.ffi').
 *
 * Waiting. Functions marked (waits) may give the processor to other fibers. They return 0 or one of the negative codes
 * below; when the code is a refusal, nothing was switched and nothing changed. Over FFI call them only from interpreted
 * code: a wait underneath a compiled trace cannot be made safe and is refused (CORD_COMPILED). The wrappers of
 * require('cord.ffi') keep the compiler away. A wait ends a trace recording that is live, if the trace-abort mode says
 * so (fiber.trace_abort in Lua); else it is refused (CORD_RECORDING).
 *
 * A wait never raises a Lua error and never unwinds. Numbers of seconds are doubles.
 */
#ifndef CORD_H
#define CORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What stands between the two marks is also what require('cord.ffi') declares. */
/* --- declarations --- */

struct lua_State;

/* A fiber: its id. Ids are never used twice, so an old one is harmless; 0 is no fiber. */
typedef uint64_t cord_fiber_t;

/* The code of a fiber. Its result is what cord_fiber_join() hands out; by convention 0, or -1 for a failure. It must not
 * raise a Lua error or throw through its caller, and must not be a Lua function (an FFI callback): fiber.new is for
 * those. */
typedef int (*cord_fiber_f)(void *arg);

/* Options of cord_fiber_new_ex(). */
typedef struct cord_fiber_attr cord_fiber_attr_t;

/* A condition variable. */
typedef struct cord_fiber_cond cord_fiber_cond_t;

enum {
    CORD_OK = 0,
    CORD_CANCELLED = -1,     /* the calling fiber is cancelled */
    CORD_TIMED_OUT = -2,     /* the deadline passed */
    CORD_INTERRUPTED = -3,   /* Ctrl-C, in the main fiber */
    CORD_DEADLOCK = -4,      /* the main fiber waits and nothing can ever wake anyone */
    /* Refusals: nothing was switched. */
    CORD_COMPILED = -10,     /* called underneath a compiled trace */
    CORD_RECORDING = -11,    /* a trace recording is live, and the trace-abort mode does not end it */
    CORD_FINALIZER = -12,    /* inside a __gc metamethod */
    CORD_VM_EVENT = -13,     /* inside a jit.attach handler or a profiler callback */
    CORD_UNPROVEN = -14,     /* the state of the JIT compiler is not known: see cord_attach() */
    CORD_SCHEDULER = -15,    /* no scheduler on this OS thread, several, or another one is running fibers */
    CORD_CALLBACK = -16,     /* inside a callback that the scheduler itself runs */
    CORD_NO_STACK = -17,     /* no C stack for whoever runs next */
    /* Failures. */
    CORD_DEAD = -20,         /* no such fiber any more */
    CORD_NOT_JOINABLE = -21, /* the fiber is not joinable */
    CORD_ARGUMENT = -22,     /* a bad argument, or a function that does not apply here */
    CORD_SYSTEM = -23,       /* a system call failed: see errno */
    CORD_LUA = -24           /* a Lua error */
};

/* The text of the last failure on this OS thread, "" before the first. Valid until the next call of a cord_ function. */
const char *cord_last_error(void);

/* The text of a code. */
const char *cord_strerror(int code);

/* Loads cord into L, as require('cord.fiber') does, and finds out what waits need to know of the JIT compiler. For native
 * modules: call it in luaopen_* or another function that Lua calls as a lua_CFunction, never over FFI. 0, or CORD_UNPROVEN
 * where the compiler's state could not be found: then waits work only while the compiler is off. Raises in L what
 * require would raise. */
int cord_attach(struct lua_State *L);

/* ---- fibers ---- */

/* A fiber that runs f, not started yet. The name is copied (at most 255 bytes; NULL: the default). 0 on failure. */
cord_fiber_t cord_fiber_new(const char *name, cord_fiber_f f);

/* The same with attributes (NULL: the defaults). A fiber with a stack size of its own gets its stack here. */
cord_fiber_t cord_fiber_new_ex(const char *name, const cord_fiber_attr_t *attr, cord_fiber_f f);

cord_fiber_attr_t *cord_fiber_attr_new(void);
void cord_fiber_attr_delete(cord_fiber_attr_t *attr);

/* Bytes of the fiber's C stack, at least 16384 (else CORD_ARGUMENT). */
int cord_fiber_attr_setstacksize(cord_fiber_attr_t *attr, size_t bytes);

/* NULL: the default, fiber.cfg().stack_size in Lua. */
size_t cord_fiber_attr_getstacksize(const cord_fiber_attr_t *attr);

/* (waits) Starts a new fiber at once, with f(arg); returns when it waits or ends. The alternative is
 * cord_fiber_set_ctx() and cord_fiber_wakeup(): it starts with f(NULL) at its turn. */
int cord_fiber_start(cord_fiber_t fiber, void *arg);

/* A pointer of the caller's own, kept with the fiber; NULL at first. */
int cord_fiber_set_ctx(cord_fiber_t fiber, void *ctx);
void *cord_fiber_get_ctx(cord_fiber_t fiber);

/* The running fiber; 0 without a scheduler. */
cord_fiber_t cord_fiber_self(void);

/* The fiber itself while it exists (also finished but not yet joined), else 0. */
cord_fiber_t cord_fiber_find(uint64_t id);
uint64_t cord_fiber_id(cord_fiber_t fiber);

/* Its name, valid until the next call of this function on this OS thread; "" for a dead fiber. 0 is the running one. */
const char *cord_fiber_name(cord_fiber_t fiber);

/* Names it with the first len bytes, cut to 255 and at a NUL. */
int cord_fiber_set_name_n(cord_fiber_t fiber, const char *name, uint32_t len);

/* Its context switches so far. 0 is the running fiber. */
uint64_t cord_fiber_csw(cord_fiber_t fiber);

/* ---- waiting ---- */

/* (waits) To the end of the queue of ready fibers: everybody who is ready runs first. As fiber.yield() in Lua, but not a
 * cancellation point. A main fiber that is alone returns at once. */
int cord_fiber_yield(void);

/* (waits) The same, under the name it has in Tarantool's module.h. */
int cord_fiber_reschedule(void);

/* (waits) Until somebody calls cord_fiber_wakeup() or cancels the fiber: what Tarantool's module.h calls fiber_yield().
 * 0 or CORD_CANCELLED. */
int cord_fiber_suspend(void);

/* (waits) For so many seconds, or until a wakeup; 0 or less is a cord_fiber_yield(). 0 or CORD_CANCELLED. */
int cord_fiber_sleep(double seconds);

/* To the end of the ready queue, if it waits. Nothing for the running fiber, a ready one or a finished one. */
int cord_fiber_wakeup(cord_fiber_t fiber);

/* Asks it to end: a flag for good, and a wakeup. Not for the library's own fibers. */
int cord_fiber_cancel(cord_fiber_t fiber);

/* Whether the running fiber is cancelled. */
bool cord_fiber_is_cancelled(void);

/* Whether its result waits for a join when it ends. */
int cord_fiber_set_joinable(cord_fiber_t fiber, bool yesno);

/* (waits) For the end of a joinable fiber; seconds below 0 wait for ever, as does cord_fiber_join(). 0 when it ended:
 * then *result (unless NULL) is what its code returned, for a Lua function 0, or -1 after an error, whose text is
 * cord_last_error(). A cancelled caller goes on waiting. */
int cord_fiber_join(cord_fiber_t fiber, int *result);
int cord_fiber_join_timeout(cord_fiber_t fiber, double seconds, int *result);

/* ---- condition variables ---- */

cord_fiber_cond_t *cord_fiber_cond_new(void);

/* CORD_ARGUMENT while somebody waits: then it stays. */
int cord_fiber_cond_delete(cord_fiber_cond_t *cond);

/* Wakes the fiber that waits longest, if any; all of them. */
int cord_fiber_cond_signal(cord_fiber_cond_t *cond);
int cord_fiber_cond_broadcast(cord_fiber_cond_t *cond);

/* (waits) Until a signal; seconds below 0 wait for ever. 0 also after a bare cord_fiber_wakeup(): look at the condition
 * again. CORD_TIMED_OUT, CORD_CANCELLED. */
int cord_fiber_cond_wait(cord_fiber_cond_t *cond);
int cord_fiber_cond_wait_timeout(cord_fiber_cond_t *cond, double seconds);

/* ---- descriptors ---- */

enum { CORD_COIO_READ = 1, CORD_COIO_WRITE = 2 };

/* (waits) Until fd is ready for one of events; seconds below 0 wait for ever. The events it is ready for, 0 when the time
 * passed or the fiber is cancelled, or a negative code. */
int cord_coio_wait(int fd, int events, double seconds);

/* Closes a descriptor that fibers may wait for: their wait ends. 0 or CORD_SYSTEM. */
int cord_coio_close(int fd);

/* ---- time ---- */

/* Seconds and microseconds since 1970, and of a clock that never goes back, as they were when the loop looked last. */
double cord_fiber_time(void);
uint64_t cord_fiber_time64(void);
double cord_fiber_clock(void);
uint64_t cord_fiber_clock64(void);

/* ---- Lua, from a fiber made by cord_fiber_new() ---- */

/* A Lua thread of the running native fiber's own, the same at each call; NULL in any other fiber, which has the lua_State
 * it was called with. It is gone when the fiber ends. Whatever may raise must run under cord_lua_pcall() or lua_pcall():
 * an uncaught error ends the process. Lua code called from here may wait in every way. */
struct lua_State *cord_lua_state(void);

/* lua_pcall without a message handler. CORD_LUA after an error: its value is on the stack, its text in cord_last_error().
 * CORD_COMPILED underneath a compiled trace, where no Lua may run. */
int cord_lua_pcall(struct lua_State *L, int nargs, int nresults);

/* --- end of declarations --- */

#ifdef __cplusplus
}
#endif

#endif /* CORD_H */
