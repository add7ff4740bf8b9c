//! Rings by hand, after docs/PROTOCOL.md: peers that use them as they should, and otherwise.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use shorthaul::{Client, ClientOptions, DirectClient, Error, Lane, Server, ServerOptions, Wait};
use shorthaul_platform::memory::{Memfd, PeerMemfd, SharedMapping};
use shorthaul_platform::store::Store;
use shorthaul_platform::usage::process_cpu_time;

use super::raw::{self, Place, Raw};
use super::{Stage, eventually, isolated, pattern};
use crate::service::PATIENCE;

/// Puts something into the rings that doesn't belong there.
type Spoil<'a> = dyn Fn(&mut Rings) + 'a;

/// One side's rings, and what it has put in and taken out.
struct Rings {
    memory: SharedMapping,
    /// Where the ring starts that this side puts in, and the one that it takes out of.
    out: usize,
    into: usize,
    produced: u32,
    consumed: u32,
    /// Frames sent through the socket.
    sent: u32,
}

impl Rings {
    /// Those of a connection that has exchanged the hellos, taken by the server.
    fn open(raw: &mut Raw) -> Self {
        let memfd = Memfd::create("rings", BYTES).unwrap();
        let memory = memfd.map().unwrap();
        raw.send_with(&rings(BYTES as u64), &[memfd.as_fd()]);
        assert_eq!(raw.rings_taken().code, raw::OK);
        Self { memory, out: 0, into: TO_CLIENT, produced: 0, consumed: 0, sent: 2 }
    }

    /// A server's, of a client that offers some with its first call; and that call.
    fn of_client(raw: &mut Raw) -> (Self, u64) {
        raw.expect(raw::HELLO);
        raw.send(&raw::hello_with(raw::RINGS_FEATURE));
        let file = raw.expect(raw::RINGS).descriptors.pop().unwrap();
        let memory = PeerMemfd::parse(file, BYTES as u64).unwrap().map().unwrap();
        raw.send(&raw::frame(raw::RINGS_TAKEN, 0, &[0; 8], &[]));
        let call = raw::u64_at(&raw.expect(raw::CALL).body, 0);
        let rings = Self { memory, out: TO_CLIENT, into: 0, produced: 0, consumed: 0, sent: 2 };
        (rings, call)
    }

    fn word(&self, at: usize) -> u32 {
        self.memory.word(at).load()
    }

    fn set(&self, at: usize, value: u32) {
        self.memory.word(at).store(value);
    }

    /// Puts a frame in; whether the other side looks.
    fn put(&mut self, frame: &[u8], after: u32) -> bool {
        let mut record = (frame.len() as u32).to_le_bytes().to_vec();
        record.extend_from_slice(&after.to_le_bytes());
        record.extend_from_slice(frame);
        for (index, byte) in record.iter().enumerate() {
            let at = (self.produced as usize + index) % DATA_BYTES;
            self.memory.copy_in(self.out + DATA + at, &[*byte], Store::Ordinary);
        }
        self.produced += (record.len() as u32).next_multiple_of(64);
        self.set(self.out + PRODUCED, self.produced);
        fence(Ordering::SeqCst);
        self.word(self.out + LOOKS) == 1
    }

    /// Puts something in and wakes nobody.
    fn slip(&mut self, frame: &[u8]) {
        self.put(frame, 0);
    }

    /// Puts a frame in and wakes the other side for it.
    fn send(&mut self, raw: &mut Raw, frame: &[u8]) {
        if !self.put(frame, self.sent) {
            self.bell(raw);
        }
    }

    fn bell(&mut self, raw: &mut Raw) {
        self.sent += 1;
        raw.send(&raw::frame(raw::BELL, 0, &[], &[]));
    }

    /// The next frame out of the other side's ring.
    fn take(&mut self) -> Vec<u8> {
        let by = Instant::now() + PATIENCE;
        while self.word(self.into + PRODUCED) == self.consumed {
            assert!(Instant::now() < by, "nothing came");
            std::thread::yield_now();
        }
        let at = self.into + DATA + self.consumed as usize % DATA_BYTES;
        let mut frame = vec![0; self.word(at) as usize];
        for (index, byte) in frame.iter_mut().enumerate() {
            let at = (self.consumed as usize + 8 + index) % DATA_BYTES;
            self.memory.copy_out(self.into + DATA + at, std::slice::from_mut(byte));
        }
        self.consumed += (frame.len() as u32 + 8).next_multiple_of(64);
        self.set(self.into + CONSUMED, self.consumed);
        frame
    }
}

fn rings(bytes: u64) -> Vec<u8> {
    raw::frame(raw::RINGS, 1, &bytes.to_le_bytes(), &[])
}

/// The id that a REPLY frame answers.
fn answered(frame: &[u8]) -> u64 {
    assert_eq!(frame[0], raw::REPLY);
    u64::from_le_bytes(frame[16..24].try_into().unwrap())
}

fn echo(id: u64) -> Vec<u8> {
    raw::call(id, Place::NONE, b"echo", &[id as u8; 100])
}

#[test]
fn frames_go_both_ways_and_keep_their_order() {
    let mut stage = Stage::new();
    let mut raw = Raw::open(&stage.path);
    let mut rings = Rings::open(&mut raw);
    // Asleep: the answers come through the socket.
    rings.send(&mut raw, &echo(1));
    assert_eq!(raw.reply().id, 1);
    rings.set(TO_CLIENT + LOOKS, 1);
    // More than there is room for at once, so that the data go round many times.
    for id in 2..2000 {
        rings.send(&mut raw, &echo(id));
        assert_eq!(answered(&rings.take()), id);
    }
    // A region goes through the socket, and the call that names it must not overtake it; the call
    // that is sent behind its release must not find it.
    let memory = Memfd::create("region", 4096).unwrap();
    rings.sent += 1;
    rings.put(&raw::fill(5000, Place::region(1, 0, 100), 100, 3), rings.sent);
    raw.send_with(&raw::register(1, 4096), &[memory.as_fd()]);
    let frames = [rings.take(), rings.take()];
    assert!(frames.iter().any(|frame| frame[0] == raw::REGISTERED), "{frames:?}");
    let reply = frames.iter().find(|frame| frame[0] == raw::REPLY).unwrap();
    assert_eq!((answered(reply), &reply[24..28]), (5000, &raw::OK.to_le_bytes()[..]));
    super::descriptor::check_bytes(&memory.into_descriptor(), 0, &pattern(100, 3));
    // What the ring holds comes before a frame of the socket's that was sent behind it.
    rings.put(&raw::of_id(raw::RELEASE, 1), rings.sent);
    rings.sent += 1;
    raw.send(&raw::fill(5001, Place::region(1, 0, 100), 100, 3));
    let reply = rings.take();
    assert_eq!((answered(&reply), &reply[24..28]), (5001, &raw::NOT_FOUND.to_le_bytes()[..]));
    stage.honest_calls();
}

/// The server's ring is full: the rest comes through the socket, and nothing is lost.
#[test]
fn a_client_that_takes_nothing_out_gets_the_rest_through_the_socket() {
    let stage = Stage::new();
    let mut raw = Raw::open(&stage.path);
    let mut rings = Rings::open(&mut raw);
    rings.set(TO_CLIENT + LOOKS, 1);
    let calls = 2 * DATA_BYTES as u64 / 128;
    for id in 0..calls {
        raw.send(&echo(id));
    }
    let mut ids: Vec<u64> = Vec::new();
    while rings.word(TO_CLIENT + PRODUCED) as usize <= DATA_BYTES - 256 {
        std::thread::yield_now();
    }
    rings.set(TO_CLIENT + LOOKS, 0);
    let in_socket = |raw: &mut Raw| raw.reply().id;
    ids.push(in_socket(&mut raw));
    while rings.word(TO_CLIENT + PRODUCED) != rings.consumed {
        ids.push(answered(&rings.take()));
    }
    while (ids.len() as u64) < calls {
        ids.push(in_socket(&mut raw));
    }
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..calls));
}

/// Each is the end of its connection, said in a goodbye, and of no other.
#[test]
fn what_no_ring_can_hold_is_a_violation() {
    isolated("hostile::rings::what_no_ring_can_hold_is_a_violation", || {
        let mut stage = Stage::new();
        let payload = raw::call_with(1, Place::NONE, b"echo", b"", b"payload");
        let file = raw::frame(raw::REGISTER, 1, &[0; 16], &[]);
        let short = echo(1)[..40].to_vec();
        let cases: [(&str, &Spoil<'_>); 12] = [
            ("more than fits", &|rings| rings.set(PRODUCED, DATA_BYTES as u32 + 64)),
            ("less than nothing", &|rings| rings.set(PRODUCED, 0_u32.wrapping_sub(64))),
            ("half a line", &|rings| rings.set(PRODUCED, 32)),
            ("a frame over its record", &|rings| {
                rings.set(DATA, 57);
                rings.set(PRODUCED, 64);
            }),
            ("a frame over the limit", &|rings| {
                rings.set(DATA, 4097);
                rings.set(PRODUCED, 8192);
            }),
            ("an endless frame", &|rings| {
                rings.set(DATA, u32::MAX);
                rings.set(PRODUCED, 64);
            }),
            ("no frame at all", &|rings| rings.slip(b"")),
            ("half a header", &|rings| rings.slip(&[2; 15])),
            ("half a frame", &|rings| rings.slip(&short)),
            ("a payload", &|rings| rings.slip(&payload)),
            ("a descriptor", &|rings| rings.slip(&file)),
            ("a hello", &|rings| rings.slip(&raw::hello())),
        ];
        for (what, spoil) in cases {
            let mut raw = Raw::open(&stage.path);
            let mut rings = Rings::open(&mut raw);
            spoil(&mut rings);
            rings.bell(&mut raw);
            let goodbye = raw.goodbye();
            assert_eq!(goodbye.code, raw::INVALID_ARGUMENT, "{what}: {}", goodbye.message);
            raw.end();
        }
        // What the client has taken out of the server's ring can't be more than was put in.
        let mut raw = Raw::open(&stage.path);
        let rings = Rings::open(&mut raw);
        rings.set(TO_CLIENT + LOOKS, 1);
        rings.set(TO_CLIENT + CONSUMED, 1 << 20);
        // Until it is full: the next answer is looked at for room.
        let is_told = |raw: &Raw| rustix::io::ioctl_fionread(&raw.socket).unwrap() > 0;
        for id in 0.. {
            let before = rings.word(TO_CLIENT + PRODUCED);
            raw.send(&echo(id));
            while rings.word(TO_CLIENT + PRODUCED) == before && !is_told(&raw) {
                std::thread::yield_now();
            }
            if is_told(&raw) {
                break;
            }
        }
        assert_eq!(raw.goodbye().code, raw::INVALID_ARGUMENT);
        drop((raw, rings));
        stage.ends_clean();
    });
}

/// Refused rings are no violation: all goes on through the socket.
#[test]
fn memory_that_is_no_rings_is_refused() {
    isolated("hostile::rings::memory_that_is_no_rings_is_refused", || {
        let mut stage = Stage::new();
        let large = Memfd::create("large", 2 * BYTES).unwrap();
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let unsealed = shorthaul_platform::memory::Draft::create("sealed", BYTES).unwrap();
        let sealed = unsealed.seal(BYTES).unwrap();
        for (file, bytes) in [
            (large.as_fd(), 2 * BYTES as u64),
            (large.as_fd(), BYTES as u64 - 64),
            (large.as_fd(), u64::MAX),
            (one.as_fd(), BYTES as u64),
            (sealed.as_fd(), BYTES as u64),
        ] {
            let mut raw = Raw::open(&stage.path);
            raw.send_with(&rings(bytes), &[file]);
            assert_eq!(raw.rings_taken().code, raw::INVALID_ARGUMENT, "{bytes}");
            raw.send(&echo(1));
            assert_eq!(raw.reply().code, raw::OK);
            // And only once.
            raw.send_with(&rings(bytes), &[file]);
            assert_eq!(raw.goodbye().code, raw::INVALID_ARGUMENT);
        }
        drop((large, one, _other, sealed));
        stage.ends_clean();
    });
}

#[test]
fn a_server_that_sleeps_takes_no_rings_and_says_so() {
    for (wait, features) in [(Wait::Block, raw::SEALED), (Wait::Spin, raw::SEALED | 4)] {
        let stage = Stage::with(ServerOptions { wait, ..ServerOptions::default() });
        let mut raw = Raw::connect(&stage.path);
        raw.send(&raw::hello());
        assert_eq!(raw::u64_at(&raw.expect(raw::HELLO).body, 16), features);
        let memory = Memfd::create("rings", BYTES).unwrap();
        raw.send_with(&rings(BYTES as u64), &[memory.as_fd()]);
        let code = if wait == Wait::Block { raw::UNIMPLEMENTED } else { raw::OK };
        assert_eq!(raw.rings_taken().code, code);
        raw.send(&echo(1));
        assert_eq!(raw.reply().code, raw::OK);
    }
}

/// A client that says it comes later than it does, and one that never lets the server sleep.
#[test]
fn hints_that_lie_hold_up_their_client_alone() {
    isolated("hostile::rings::hints_that_lie_hold_up_their_client_alone", || {
        let mut stage = Stage::new();
        let mut waits = Raw::open(&stage.path);
        let mut rings = Rings::open(&mut waits);
        rings.put(&echo(1), u32::MAX / 2);
        rings.bell(&mut waits);
        // Nobody spins over it.
        let used = || process_cpu_time(std::process::id()).unwrap();
        let before = used();
        std::thread::sleep(Duration::from_millis(500));
        assert!(used() - before < Duration::from_millis(400), "{:?}", used() - before);
        waits.send(&echo(2));
        assert_eq!(waits.reply().id, 2);
        for word in [LOOKS, CPU, TO_CLIENT + LOOKS, TO_CLIENT + CPU] {
            rings.set(word, u32::MAX);
        }
        stage.honest_calls();
        drop((waits, rings));
        stage.ends_clean();
    });
}

/// A server of which nobody knows whether it looks: one that sleeps, and one that is gone.
#[test]
fn a_client_that_looks_sees_the_end_of_its_server() {
    for wait in [Wait::Adaptive, Wait::Spin] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let options = ServerOptions { inline_handlers: true, wait, ..ServerOptions::default() };
        let server = Server::bind_with(&path, options).unwrap();
        let server = server.start(|call: &mut shorthaul::InboundCall| {
            call.payload(100)?.fill(7, 100)?;
            call.reply(&[])
        });
        let server = server.unwrap();
        let options = ClientOptions { wait, ..ClientOptions::default() };
        let mut client = DirectClient::connect_with(&path, &options).unwrap();
        let mut buffer = client.buffer(4096).unwrap();
        for _ in 0..1000 {
            let reply = client.call("").into(buffer).send().unwrap();
            assert_eq!((reply.len(), reply.lane()), (100, Lane::FillMap));
            buffer = reply.into_buffer().unwrap();
        }
        assert!(server.stop(Duration::from_secs(5)));
        client.call("").into(buffer).send().unwrap_err();
        assert!(!client.is_alive());
    }
}

/// A server whose ring never runs dry: the client's time is over all the same.
#[test]
fn a_server_that_never_stops_talking_keeps_no_client() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| talk_without_end(Raw::over(ours), &is_over));
        let options = ClientOptions { wait: Wait::Spin, ..ClientOptions::default() };
        let mut client = DirectClient::from_stream(theirs, &options).unwrap();
        client.call("answered").deadline(PATIENCE).send().unwrap();
        for _ in 0..3 {
            let failed = client.call("not answered").deadline(SHORT).send().unwrap_err();
            assert!(matches!(failed.error(), Error::DeadlineExceeded), "{failed}");
            client.poll(SHORT).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        let failed = client.call("nobody is there").deadline(PATIENCE).send().unwrap_err();
        assert!(matches!(failed.error(), Error::ConnectionLost(_)), "{failed}");
    });
}

/// The same, for a client whose reactor looks: its callers are told in time, and so is it.
#[test]
fn a_server_that_never_stops_talking_keeps_no_caller() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| talk_without_end(Raw::over(ours), &is_over));
        let options = ClientOptions { wait: Wait::Spin, ..ClientOptions::default() };
        let client = Client::from_stream(theirs, &options).unwrap();
        client.call("answered").deadline(PATIENCE).send().unwrap();
        let call = || client.call("not answered").deadline(SHORT).send().unwrap_err();
        std::thread::scope(|scope| {
            let calling: Vec<_> = (0..3).map(|_| scope.spawn(call)).collect();
            for failed in calling.into_iter().map(|calling| calling.join().unwrap()) {
                assert!(matches!(failed.error(), Error::DeadlineExceeded), "{failed}");
            }
        });
        is_over.store(true, Ordering::Relaxed);
        let failed = client.call("nobody is there").deadline(PATIENCE).send().unwrap_err();
        assert!(matches!(failed.error(), Error::ConnectionLost(_)), "{failed}");
    });
}

/// A client's reactor that looks: calls and answers go through the rings alone, and it says that it
/// sleeps whenever nobody waits.
#[test]
fn calls_of_many_threads_go_through_rings() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let (tell, is_asleep) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || answer_through_rings(Raw::over(ours), &tell));
        let options = ClientOptions { wait: Wait::Spin, ..ClientOptions::default() };
        let client = Client::from_stream(theirs, &options).unwrap();
        let call = |request: &[u8]| client.call("").request(request).deadline(PATIENCE).send();
        assert_eq!(call(b"first").unwrap().response(), b"");
        let call_often = |seed: u8| {
            for turn in 0..CALLS_BY_HAND {
                let request = pattern(turn % 500, seed);
                assert_eq!(call(&request).unwrap().response(), request);
            }
        };
        std::thread::scope(|scope| {
            (0..CALLERS as u8).for_each(|seed| drop(scope.spawn(move || call_often(seed))));
        });
        is_asleep.recv_timeout(PATIENCE).unwrap();
        // One whose time passes is no reason to look, though the server never answers it.
        let late = client.call("").request(b"last").deadline(SHORT).send().unwrap_err();
        assert!(matches!(late.error(), Error::DeadlineExceeded), "{late}");
        assert_eq!(client.open_calls(), 1);
        is_asleep.recv_timeout(PATIENCE).unwrap();
        let lost = client.call("").request(b"lost").deadline(PATIENCE).send().unwrap();
        assert_eq!(lost.response(), b"lost", "what is in the ring comes before the end");
    });
}

/// Sends back what calls ask, through the ring; the server's side of the test above.
fn answer_through_rings(mut raw: Raw, asleep: &Sender<()>) {
    let (mut rings, first) = Rings::of_client(&mut raw);
    // From the second call on.
    rings.set(LOOKS, 1);
    rings.sent += 1;
    raw.send(&raw::frame(raw::REPLY, 0, &raw::reply_body(first, 0, 0, 0), &[]));
    let see_it_asleep = |rings: &Rings| {
        eventually("the client sleeps", || rings.word(TO_CLIENT + LOOKS) == 0);
        asleep.send(()).unwrap();
    };
    let is_socket_empty = |raw: &Raw| rustix::io::ioctl_fionread(&raw.socket).unwrap() == 0;
    for _ in 0..CALLERS * CALLS_BY_HAND {
        let call = rings.take();
        assert!(is_socket_empty(&raw), "nothing comes through the socket");
        assert_eq!(rings.word(TO_CLIENT + LOOKS), 1, "it looks for the answer");
        // When it is there it may have been taken, and the client asleep again.
        rings.send(&mut raw, &echoed(&call));
    }
    see_it_asleep(&rings);
    let last = rings.take();
    let cancel = rings.take();
    assert_eq!((cancel[0], &cancel[16..24]), (raw::CANCEL, &last[16..24]));
    see_it_asleep(&rings);
    let lost = rings.take();
    assert!(is_socket_empty(&raw));
    rings.put(&echoed(&lost), rings.sent);
}

/// The answer to a CALL without bulk: its own request.
fn echoed(call: &[u8]) -> Vec<u8> {
    assert_eq!(call[0], raw::CALL);
    let id = u64::from_le_bytes(call[16..24].try_into().unwrap());
    let request_bytes = raw::u32_at(call, 16 + 20) as usize;
    let mut body = raw::reply_body(id, raw::OK, raw::LANE_NONE, 0);
    body[24..28].copy_from_slice(&(request_bytes as u32).to_le_bytes());
    body.extend_from_slice(&call[call.len() - request_bytes..]);
    raw::frame(raw::REPLY, 0, &body, &[])
}

/// Answers one call, then says through the ring that there is news, again and again; hangs up when
/// it is over, and talks on for a while.
fn talk_without_end(mut server: Raw, is_over: &AtomicBool) {
    server.expect(raw::HELLO);
    server.send(&raw::hello_with(raw::RINGS_FEATURE));
    let (mut memory, mut call) = (None, None);
    while memory.is_none() || call.is_none() {
        let frame = server.next().unwrap();
        match frame.kind {
            raw::RINGS => memory = frame.descriptors.into_iter().next(),
            raw::CALL => call = Some(raw::u64_at(&frame.body, 0)),
            kind => panic!("a frame of kind {kind}"),
        }
    }
    let memory = PeerMemfd::parse(memory.unwrap(), BYTES as u64).unwrap().map().unwrap();
    server.send(&raw::frame(raw::RINGS_TAKEN, 0, &[0; 8], &[]));
    let mut record = 16_u32.to_le_bytes().to_vec();
    record.extend_from_slice(&[0; 4]);
    record.extend_from_slice(&raw::frame(raw::BELL, 0, &[], &[]));
    for at in (0..DATA_BYTES).step_by(64) {
        memory.copy_in(TO_CLIENT + DATA + at, &record, Store::Ordinary);
    }
    server.send(&raw::frame(raw::REPLY, 0, &raw::reply_body(call.unwrap(), 0, 0, 0), &[]));
    let fill_up = || {
        let consumed = memory.word(TO_CLIENT + CONSUMED).load();
        memory.word(TO_CLIENT + PRODUCED).store(consumed.wrapping_add(DATA_BYTES as u32));
    };
    // The answer was taken: what the ring holds from now on comes before all of the socket's.
    server.expect(raw::CALL);
    let by = Instant::now() + PATIENCE;
    while !is_over.load(Ordering::Relaxed) && Instant::now() < by {
        fill_up();
    }
    drop(server);
    let end = Instant::now() + SHORT;
    while Instant::now() < end {
        fill_up();
    }
}

const CALLERS: usize = 4;
const CALLS_BY_HAND: usize = 500;
const SHORT: Duration = Duration::from_millis(200);
const BYTES: usize = 66_560;
const DATA_BYTES: usize = 32 << 10;
const PRODUCED: usize = 0;
const CONSUMED: usize = 128;
const LOOKS: usize = 256;
const CPU: usize = 260;
const DATA: usize = 512;
/// Where the server's ring starts.
const TO_CLIENT: usize = 33_280;
