//! The bounds of the library that a peer or a user could run into, with who needs them.

use std::time::Duration;

/// What one side allows the other; told to it in the hello, so that an honest peer never runs into
/// them and a hostile one gains nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls of one connection that are not answered yet.
    pub calls_max: u32,
    /// Buffers (regions) that one connection has registered.
    pub regions_max: u32,
    /// Request bytes of one call, and response bytes of one answer.
    pub message_bytes_max: u32,
    /// Payload bytes that travel inline in one frame.
    pub inline_bytes_max: u64,
    /// Bytes of one region.
    pub region_bytes_max: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            calls_max: 128,
            regions_max: 256,
            message_bytes_max: 64 << 10,
            inline_bytes_max: 128 << 20,
            region_bytes_max: 16 << 30,
        }
    }
}

/// What all connections of one user id may hold together on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserLimits {
    /// Connections.
    pub connections_max: u64,
    /// Calls that are not answered yet, each with its request.
    pub calls_max: u64,
    /// Bytes of payloads that travel inline, of requests and answers, until they are written or
    /// their calls have ended: memory of the server's own. What is over it is that call's failure.
    pub inline_bytes_max: u64,
    /// Regions registered, one-shot ones included, and descriptors handed over with calls: each is
    /// a descriptor of the server.
    pub regions_max: u64,
    /// Bytes of those regions: no more can be mapped, or filled at the server's charge, at a time.
    pub region_bytes_max: u64,
    /// Sealed answers that it holds, each a descriptor of the server, and copies of its uploads.
    pub lent_max: u64,
    /// Bytes of those: memory of the server's own.
    pub lent_bytes_max: u64,
}

impl Default for UserLimits {
    fn default() -> Self {
        Self {
            connections_max: 4096,
            calls_max: 16 << 10,
            inline_bytes_max: 4 << 30,
            regions_max: 4096,
            region_bytes_max: 64 << 30,
            lent_max: 256,
            lent_bytes_max: 4 << 30,
        }
    }
}

/// A payload, and each part of a region that a call names, starts at a multiple of this many bytes:
/// a cache line, so that two calls never share one.
pub const PAYLOAD_ALIGNMENT: u64 = 64;
/// Parts of one payload.
pub const PARTS_MAX: usize = 1024;
/// Bytes of the table of their lengths.
pub(crate) const PART_TABLE_BYTES_MAX: usize = PARTS_MAX * 8;
/// Bytes of a method's name.
pub const METHOD_BYTES_MAX: usize = 255;
/// Bytes of an error's message; a longer one is cut at a character.
pub const STATUS_BYTES_MAX: usize = 1024;
/// Bytes of a notice.
pub const NOTICE_BYTES_MAX: usize = 4096;

/// A body holds at most a message with its method and status, so this much is enough for any side.
pub(crate) const BODY_BYTES_MAX: u32 = 1 << 20;
/// Largest `message_bytes_max` that a side may set: what fits a body beside everything else.
pub const MESSAGE_BYTES_CAP: u32 = BODY_BYTES_MAX - (16 << 10);
const _: () = assert!(
    MESSAGE_BYTES_CAP as usize + METHOD_BYTES_MAX + STATUS_BYTES_MAX + PART_TABLE_BYTES_MAX + 128
        <= BODY_BYTES_MAX as usize
);
const _: () = assert!(NOTICE_BYTES_MAX + 16 <= BODY_BYTES_MAX as usize);

/// Room for one read from a socket. Small frames arrive many at a time; of a large payload this
/// much is copied once more, the rest is read where it belongs.
pub(crate) const STAGING_BYTES: usize = 16 << 10;
/// Bytes moved for one connection before its neighbours have their turn.
pub(crate) const TURN_BYTES_MAX: usize = 4 << 20;
/// Frames handled for one connection before its neighbours have their turn.
pub(crate) const TURN_FRAMES_MAX: usize = 64;
/// Frames that a client takes in before it looks after everything else: a server sends as many as
/// it likes, for notices need no asking.
pub(crate) const CLIENT_TURN_FRAMES_MAX: usize = 1024;
/// Frames waiting to be written, beyond which nothing more is read from that peer.
pub(crate) const OUTBOX_FRAMES_MAX: usize = 1024;
/// Bytes of those, payloads apart, beyond which nothing more is read either.
pub(crate) const OUTBOX_BYTES_MAX: usize = 4 << 20;
/// Inline payload bytes that one connection may have in answers under way (being made, or waiting
/// to be written); one call is always let through.
pub(crate) const INLINE_BYTES_UNDER_WAY_MAX: u64 = 64 << 20;
/// Bytes of request payloads received and not yet dropped by their calls, beyond which nothing more
/// is read from that connection.
pub(crate) const REQUEST_BYTES_UNDER_WAY_MAX: u64 = 64 << 20;
/// What a connection may be served in one round of the deficit round robin. Smaller is fairer,
/// larger costs fewer rounds; a megabyte is some tens of microseconds of memory bandwidth.
pub(crate) const QUANTUM_BYTES: u64 = 1 << 20;
/// What a call costs in the round robin beyond its bytes.
pub(crate) const CALL_COST_BYTES: u64 = 4096;
/// Mappings of clients' regions that one reactor keeps, unless its server says otherwise: far below
/// the kernel's vm.max_map_count of 65,530.
pub const KEPT_MAPPINGS_MAX: usize = 1024;
/// Sealed answers that are out and looked at for each one that goes out: more than one, so that
/// what came back is noticed faster than more goes out.
pub(crate) const LENT_LOOKS: usize = 4;
/// How many of a user's are looked at when that user is at its limit.
pub(crate) const LENT_LOOKS_AT_LIMIT: usize = 64;
/// How many of each user's are looked at when nothing else happens, and how often.
pub(crate) const LENT_LOOKS_AT_REST: usize = 1024;
pub(crate) const LENT_REST: Duration = Duration::from_secs(1);
/// How soon they are looked at after a connection has ended, and then twice as late each time: its
/// client may be gone, and so may what it held.
pub(crate) const LENT_REST_AFTER_END: Duration = Duration::from_millis(50);
/// Spare inline memory that a pool keeps.
pub(crate) const POOL_BYTES_MAX: usize = 256 << 20;
/// Blocks of one size class that a pool keeps.
pub(crate) const POOL_BLOCKS_MAX: usize = 64;
/// Bytes that a relay moves with one system call.
pub const RELAY_CHUNK_BYTES_MAX: usize = 64 << 20;
/// Threads that close what strangers have opened, in all and for one user: eight users could keep
/// what others have opened waiting to be closed, and no fewer.
pub(crate) const UNDERTAKERS_MAX: usize = 64;
pub(crate) const UNDERTAKERS_PER_USER_MAX: usize = 8;
/// Relays that a server keeps for later calls, each with a buffer and a pipe.
pub(crate) const RELAYS_KEPT_MAX: usize = 16;
/// Methods whose payloads' sizes a client remembers for its automatic choices.
pub(crate) const AUTO_METHODS_MAX: usize = 1024;
/// Notices that wait to be read on a client; further ones push out the oldest.
pub const NOTICES_MAX: usize = 256;
/// Commands that wait for a reactor, beyond which notices are dropped. (Calls and their answers are
/// bounded by `calls_max`.)
pub(crate) const INBOX_MAX: usize = 64 << 10;
/// Connections that one server holds in all.
pub(crate) const CONNECTIONS_MAX: usize = 8192;
/// Bytes of buffers whose calls ended without the server's word that it let go of them.
pub(crate) const RETIRED_BYTES_MAX: u64 = 4 << 30;

/// A hello must be complete this long after the connection.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// A frame that has begun must grow within this.
pub(crate) const FRAME_STALL_TIMEOUT: Duration = Duration::from_secs(10);
/// A peer that is owed bytes must take some within this; so must a descriptor that it has handed
/// over to be relayed into.
pub(crate) const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// A cancelled call must be acknowledged within this, or its buffer is retired.
pub(crate) const CANCEL_ACK_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections whose rings a reactor looks into at the same time, and how long at most after a
/// connection's last call.
pub(crate) const RINGS_LOOKED_INTO_MAX: usize = 16;
pub(crate) const LOOK_SERVER_MAX: Duration = Duration::from_millis(10);
/// How long accepting rests when the process is out of descriptors.
pub(crate) const ACCEPT_REST: Duration = Duration::from_millis(100);
/// How much longer than its deadline a caller waits for the server's word on a call whose
/// descriptor the server may be relaying into: only that says how much is in it.
pub(crate) const LAST_WORD_GRACE: Duration = Duration::from_secs(1);
/// A call without a deadline of its own has this one.
pub(crate) const DEADLINE_DEFAULT: Duration = Duration::from_secs(60);
