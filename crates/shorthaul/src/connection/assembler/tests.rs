//! Bytes and descriptors in every order and portion that a stream can bring them in.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::*;
use crate::error::Code;
use crate::parts::Parts;
use crate::wire::{Call, Fill, LaneNumber, Reply, Room, Upload};

/// A descriptor that is counted: the number of handles is the number of descriptors open.
type Token = Arc<()>;

/// An assembler, and what feeds it.
struct Wire {
    assembler: Assembler<Token>,
    origin: Token,
    now: Instant,
}

/// A frame that came out, as bytes again.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    head: Vec<u8>,
    payload: Vec<u8>,
    descriptors: Vec<Token>,
    is_lost: bool,
}

/// What one read led to: frames, and what was wrong in the end.
type Outcome = (Vec<Seen>, Option<Violation>);

impl Wire {
    fn new() -> Self {
        Self {
            assembler: Assembler::new(Limits::default(), Purse::default()),
            origin: Arc::new(()),
            now: Instant::now(),
        }
    }

    /// Descriptors that nobody has closed.
    fn open_descriptors(&self) -> usize {
        Arc::strong_count(&self.origin) - 1
    }

    fn some(&self, count: usize) -> Arrival<Token> {
        Arrival::Some((0..count).map(|_| Arc::clone(&self.origin)).collect())
    }

    /// One read of all of `bytes`.
    fn read(&mut self, bytes: &[u8], arrival: Arrival<Token>) -> Outcome {
        self.assembler.space()[..bytes.len()].copy_from_slice(bytes);
        if let Err(violation) = self.assembler.commit(bytes.len(), arrival, self.now) {
            return (Vec::new(), Some(violation));
        }
        let mut seen = Vec::new();
        loop {
            match self.assembler.next() {
                Ok(Some(assembled)) => seen.push(see(assembled)),
                Ok(None) => return (seen, None),
                Err(violation) => return (seen, Some(violation)),
            }
        }
    }

    /// Reads as large as there is room for; the one that brings the byte at `descriptor_at` brings
    /// `count` descriptors. Returns the frames and the number of reads.
    fn read_all(
        &mut self,
        bytes: &[u8],
        descriptor_at: Option<usize>,
        count: usize,
    ) -> (Vec<Seen>, usize) {
        let (mut all, mut reads, mut at) = (Vec::new(), 0, 0);
        while at < bytes.len() {
            let end = bytes.len().min(at + self.assembler.space().len());
            let brings = descriptor_at.is_some_and(|descriptor| (at..end).contains(&descriptor));
            let arrival = if brings { self.some(count) } else { Arrival::None };
            let (seen, violation) = self.read(&bytes[at..end], arrival);
            assert_eq!(violation, None);
            all.extend(seen);
            (at, reads) = (end, reads + 1);
        }
        (all, reads)
    }
}

#[test]
fn a_payload_without_memory_for_it_is_passed_over() {
    let meter = Arc::new(crate::meter::Meter::new(100));
    let purse = Arc::<crate::payload::MemoryPool>::default().counted(&meter);
    for portion in [1, 7, 4000, 100_000] {
        let mut wire = Wire::new();
        wire.assembler = Assembler::new(Limits::default(), purse.clone());
        let payload = vec![3; 50_000];
        let frames = [one_shot(&payload), cancel(5), call_with(&payload[..100], b"")].concat();
        let (mut seen, mut at) = (Vec::new(), 0);
        while at < frames.len() {
            let end = frames.len().min(at + portion.min(wire.assembler.space().len()));
            let arrival = if at == 0 { wire.some(1) } else { Arrival::None };
            let (more, violation) = wire.read(&frames[at..end], arrival);
            assert_eq!(violation, None);
            (seen, at) = (seen.into_iter().chain(more).collect(), end);
        }
        // Its descriptor stays with its frame, and nothing behind it shifts.
        assert_eq!((seen.len(), seen[0].payload.len(), seen[0].descriptors.len()), (3, 0, 1));
        assert_eq!(seen[1].head, cancel(5));
        assert_eq!(seen[2].payload, payload[..100]);
        assert!(meter.is_zero());
    }
}

fn see(assembled: Assembled<'_, Token>) -> Seen {
    let payload = assembled.payload.map_or(Vec::new(), |memory| memory.to_vec());
    let is_lost = matches!(assembled.descriptors, Some(Claim::Lost));
    let head = assembled.frame.encode(payload.len() as u64).to_vec();
    let descriptors = assembled.descriptors.into_iter().flat_map(Claim::into_arrived).collect();
    Seen { head, payload, descriptors, is_lost }
}

fn cancel(call: u64) -> Vec<u8> {
    Frame::Cancel { call }.encode(0).to_vec()
}

fn register(region: u64) -> Vec<u8> {
    Frame::Register { region, bytes: 64 }.encode(0).to_vec()
}

fn call_of(fill: Fill, upload: Upload, payload: &[u8], request: &[u8]) -> Vec<u8> {
    let call = Call {
        call: 1,
        remaining_ns: 0,
        room: Room { fill, ..Room::default() },
        upload,
        parts: Parts::one(upload.bytes() as usize),
        method: "m",
        request,
    };
    let mut bytes = Frame::Call(call).encode(payload.len() as u64).to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

fn inline_upload(payload: &[u8]) -> Upload {
    match payload.len() as u64 {
        0 => Upload::None,
        bytes => Upload::Inline { bytes },
    }
}

fn call_with(payload: &[u8], request: &[u8]) -> Vec<u8> {
    call_of(Fill::None, inline_upload(payload), payload, request)
}

/// Carries one descriptor, and a payload.
fn one_shot(payload: &[u8]) -> Vec<u8> {
    call_of(Fill::OneShot { bytes: 64 }, inline_upload(payload), payload, b"")
}

/// Carries two descriptors.
fn two_files() -> Vec<u8> {
    let upload = Upload::Sealed { offset: 64, bytes: 10 };
    call_of(Fill::OneShot { bytes: 64 }, upload, b"", b"request")
}

/// Carries one descriptor, downwards.
fn sealed_reply() -> Vec<u8> {
    let (code, lane) = (Code::Ok, LaneNumber::Sealed);
    let (payload_bytes, parts) = (10, Parts::one(10));
    let (response, message) = (&b"response"[..], "");
    let reply = Reply { call: 1, code, lane, payload_bytes, offset: 64, parts, response, message };
    Frame::Reply(reply).encode(0).to_vec()
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at % 251) as u8).collect()
}

fn bytes_of(seen: &[Seen]) -> Vec<u8> {
    seen.iter().flat_map(|frame| [&frame.head[..], &frame.payload].concat()).collect()
}

#[test]
fn bytes_come_one_at_a_time() {
    let payload = pattern(300);
    let stream = [cancel(1), call_with(&payload, b"request"), cancel(2)].concat();
    let mut wire = Wire::new();
    let mut all = Vec::new();
    for byte in &stream {
        let (seen, violation) = wire.read(&[*byte], Arrival::None);
        assert_eq!(violation, None);
        all.extend(seen);
    }
    assert_eq!(all.len(), 3);
    assert_eq!(bytes_of(&all), stream);
    assert_eq!(wire.assembler.deadline(), None, "no frame is under way");
}

#[test]
fn many_frames_come_in_one_read() {
    let stream: Vec<u8> = (0..100).flat_map(cancel).collect();
    let mut wire = Wire::new();
    let (seen, violation) = wire.read(&stream, Arrival::None);
    assert_eq!((seen.len(), violation), (100, None));
    assert_eq!(bytes_of(&seen), stream);
}

#[test]
fn every_cut_into_two_reads_gives_the_same() {
    let stream = [cancel(1), call_with(b"payload", b"request"), register(3), cancel(4)].concat();
    let register_at = stream.len() - cancel(4).len() - register(3).len();
    for cut in 1..stream.len() {
        let mut wire = Wire::new();
        let in_first = (register_at < cut).then_some(register_at);
        let (mut seen, _) = wire.read_all(&stream[..cut], in_first, 1);
        let (rest, _) = wire.read_all(&stream[cut..], register_at.checked_sub(cut), 1);
        seen.extend(rest);
        assert_eq!(bytes_of(&seen), stream, "cut at {cut}");
        assert_eq!(seen[2].descriptors.len(), 1, "cut at {cut}");
        drop(seen);
        assert_eq!(wire.open_descriptors(), 0);
    }
}

#[test]
fn a_payload_larger_than_the_staging_is_read_in_place() {
    let payload = pattern(5 * STAGING_BYTES + 77);
    let stream = [call_with(&payload, b"r"), cancel(2)].concat();
    let mut wire = Wire::new();
    let (seen, reads) = wire.read_all(&stream, None, 0);
    assert_eq!(bytes_of(&seen), stream);
    assert_eq!(reads, 3, "the staging, the rest of the payload, what follows");
    assert_eq!(wire.assembler.staging.len(), STAGING_BYTES);
}

/// Bodies grow the staging to what a message may be, and no further.
#[test]
fn a_body_larger_than_the_staging_is_whole() {
    let request = pattern(Limits::default().message_bytes_max as usize);
    let stream = [cancel(1), call_with(b"payload", &request), cancel(2)].concat();
    let mut wire = Wire::new();
    let (seen, _) = wire.read_all(&stream, None, 0);
    assert_eq!(bytes_of(&seen), stream);
    assert!(wire.assembler.staging.len() < request.len() + STAGING_BYTES);
}

/// Frames that carry descriptors, and how many.
fn carriers() -> [(Vec<u8>, usize); 4] {
    [(register(2), 1), (one_shot(b"payload"), 1), (two_files(), 2), (sealed_reply(), 1)]
}

#[test]
fn descriptors_are_claimed_by_the_frame_they_came_with() {
    for (frame, count) in carriers() {
        let mut wire = Wire::new();
        let arrival = wire.some(count);
        // Earlier bytes are joined to those of the descriptors.
        let (seen, violation) = wire.read(&[cancel(1), frame.clone()].concat(), arrival);
        assert_eq!((seen.len(), violation), (2, None));
        assert_eq!((seen[0].descriptors.len(), seen[1].descriptors.len()), (0, count));
        assert_eq!([&seen[1].head[..], &seen[1].payload].concat(), frame);
        drop(seen);
        assert_eq!(wire.open_descriptors(), 0);
    }
}

/// The first is the memory to be filled, the second the upload: they must not be swapped.
#[test]
fn two_descriptors_keep_their_order() {
    let mut wire = Wire::new();
    let (first, second): (Token, Token) = (Arc::new(()), Arc::new(()));
    let arrival = Arrival::Some([Arc::clone(&first), Arc::clone(&second)].into_iter().collect());
    let (seen, _) = wire.read(&two_files(), arrival);
    assert!(Arc::ptr_eq(&seen[0].descriptors[0], &first));
    assert!(Arc::ptr_eq(&seen[0].descriptors[1], &second));
}

#[test]
fn descriptors_wait_for_the_rest_of_their_frame() {
    for (frame, count) in carriers() {
        for cut in 1..frame.len() {
            let mut wire = Wire::new();
            let arrival = wire.some(count);
            let (seen, violation) = wire.read(&frame[..cut], arrival);
            assert_eq!((seen.len(), violation), (0, None), "cut at {cut}");
            assert_eq!(wire.open_descriptors(), count);
            let (seen, violation) = wire.read(&frame[cut..], Arrival::None);
            assert_eq!(violation, None, "cut at {cut}");
            assert_eq!(seen[0].descriptors.len(), count);
        }
    }
}

#[test]
fn a_descriptor_waits_for_the_payload_of_its_frame() {
    let frame = one_shot(b"payload");
    let mut wire = Wire::new();
    let arrival = wire.some(1);
    let (seen, _) = wire.read(&frame[..frame.len() - 1], arrival);
    assert!(seen.is_empty());
    let (seen, violation) = wire.read(&frame[frame.len() - 1..], Arrival::None);
    assert_eq!(violation, None);
    assert_eq!(bytes_of(&seen), frame);
    assert_eq!(seen[0].descriptors.len(), 1);
}

#[test]
fn a_descriptor_behind_the_first_byte_is_refused() {
    for (frame, count) in carriers() {
        for cut in 1..frame.len() {
            let mut wire = Wire::new();
            wire.read(&frame[..cut], Arrival::None);
            let arrival = wire.some(count);
            let (seen, violation) = wire.read(&frame[cut..], arrival);
            assert!(seen.is_empty(), "cut at {cut}");
            assert!(violation.is_some(), "cut at {cut}");
            drop(wire.assembler);
            assert_eq!(Arc::strong_count(&wire.origin), 1, "cut at {cut}");
        }
    }
}

/// One with the first byte and one with a later: that is not two with the first.
#[test]
fn descriptors_of_one_frame_come_at_once() {
    let frame = two_files();
    for cut in 1..frame.len() {
        let mut wire = Wire::new();
        let arrival = wire.some(1);
        let (_, early) = wire.read(&frame[..cut], arrival);
        assert_eq!(early.is_some(), cut >= HEADER_BYTES, "cut at {cut}");
        if early.is_none() {
            let arrival = wire.some(1);
            let (seen, violation) = wire.read(&frame[cut..], arrival);
            assert!(seen.is_empty(), "cut at {cut}");
            assert_eq!(violation, Some(Violation::DescriptorCount { announced: 2 }));
        }
        drop(wire.assembler);
        assert_eq!(Arc::strong_count(&wire.origin), 1, "cut at {cut}");
    }
}

#[test]
fn a_second_set_inside_a_frame_is_refused() {
    for (frame, count) in carriers() {
        for cut in 1..frame.len() {
            let mut wire = Wire::new();
            let arrival = wire.some(count);
            let (_, violation) = wire.read(&frame[..cut], arrival);
            assert_eq!(violation, None);
            let arrival = wire.some(1);
            let (seen, violation) = wire.read(&frame[cut..], arrival);
            assert_eq!(violation, Some(Violation::UnclaimedDescriptors), "cut at {cut}");
            drop(seen);
            drop(wire.assembler);
            assert_eq!(Arc::strong_count(&wire.origin), 1, "cut at {cut}");
        }
    }
}

#[test]
fn a_descriptor_on_a_frame_that_takes_none_is_refused() {
    for stream in [cancel(1), call_with(b"", b"r"), [cancel(1), cancel(2)].concat()] {
        let mut wire = Wire::new();
        let arrival = wire.some(1);
        let (_, violation) = wire.read(&stream, arrival);
        assert_eq!(violation, Some(Violation::UnclaimedDescriptors));
    }
    // Already while the frame is incomplete, once its header says that it takes none.
    let mut wire = Wire::new();
    let arrival = wire.some(1);
    let (_, violation) = wire.read(&cancel(1)[..HEADER_BYTES], arrival);
    assert_eq!(violation, Some(Violation::UnclaimedDescriptors));
}

#[test]
fn a_descriptor_inside_a_payload_is_refused() {
    let frame = call_with(&pattern(100), b"r");
    let mut wire = Wire::new();
    wire.read(&frame[..frame.len() - 50], Arrival::None);
    let arrival = wire.some(1);
    let (seen, violation) = wire.read(&frame[frame.len() - 50..], arrival);
    assert!(violation.is_some());
    drop((seen, wire.assembler));
    assert_eq!(Arc::strong_count(&wire.origin), 1);
}

#[test]
fn fewer_or_more_descriptors_than_announced_are_refused() {
    for (frame, due) in carriers() {
        let announced = Violation::DescriptorCount { announced: due as u8 };
        for count in (0..=4).filter(|&count| count != due) {
            let mut wire = Wire::new();
            let arrival = match count {
                0 => Arrival::None,
                count => wire.some(count),
            };
            let (seen, violation) = wire.read(&frame, arrival);
            assert!(seen.is_empty());
            assert_eq!(violation, Some(announced), "{count} descriptors");
            assert_eq!(wire.open_descriptors(), count, "not closed where they are refused");
            let origin = Arc::clone(&wire.origin);
            drop(wire);
            assert_eq!(Arc::strong_count(&origin), 1, "closed with their connection");
        }
        let mut wire = Wire::new();
        let (_, violation) = wire.read(&frame, Arrival::TooMany(SmallVec::new()));
        assert_eq!(violation, Some(Violation::TooManyDescriptors));
    }
}

/// Lost descriptors are the claim of their own frame, so that those of later ones don't shift.
#[test]
fn a_lost_descriptor_is_missing_in_its_own_frame_alone() {
    for (frame, count) in carriers() {
        let mut wire = Wire::new();
        let (seen, violation) = wire.read(&frame, Arrival::Lost(SmallVec::new()));
        assert_eq!(violation, None);
        assert!(seen[0].is_lost && seen[0].descriptors.is_empty());
        let arrival = wire.some(count);
        let (seen, violation) = wire.read(&frame, arrival);
        assert_eq!(violation, None);
        assert!(!seen[0].is_lost && seen[0].descriptors.len() == count);
        let (_, violation) = wire.read(&cancel(3), Arrival::Lost(SmallVec::new()));
        assert_eq!(violation, Some(Violation::UnclaimedDescriptors));
    }
}

/// A frame has all of its descriptors or none. Those that came without the others must not pile up
/// in a process that is out of descriptors.
#[test]
fn what_came_beside_lost_descriptors_is_given_out_at_once() {
    for (frame, count) in carriers() {
        for others in 1..=3 {
            let mut wire = Wire::new();
            let Arrival::Some(list) = wire.some(others) else { panic!("some") };
            let (seen, violation) = wire.read(&frame, Arrival::Lost(list));
            assert_eq!(violation, None, "{count} announced, {others} arrived");
            assert!(seen[0].is_lost && seen[0].descriptors.is_empty());
            let mut given = 0;
            while wire.assembler.pop_spoiled().is_some() {
                given += 1;
            }
            assert_eq!((given, wire.open_descriptors()), (others, 0));
        }
    }
}

/// At the end everything that was not handed on comes out, wherever it has got to.
#[test]
fn what_nobody_claimed_is_taken_out_at_the_end() {
    for (frame, count) in carriers() {
        for cut in 1..=frame.len() {
            let mut wire = Wire::new();
            let arrival = wire.some(count);
            let (seen, _) = wire.read(&frame[..cut], arrival);
            let handed_on = seen.iter().map(|seen| seen.descriptors.len()).sum::<usize>();
            let mut taken = Vec::new();
            wire.assembler.take_descriptors(&mut taken);
            assert_eq!(handed_on + taken.len(), count, "cut at {cut}");
            drop((seen, taken));
            assert_eq!(wire.open_descriptors(), 0);
            wire.assembler.take_descriptors(&mut Vec::new());
        }
    }
}

#[test]
fn each_of_many_descriptors_goes_to_its_frame() {
    let mut wire = Wire::new();
    for region in 0..1000 {
        let arrival = wire.some(1);
        let (seen, violation) = wire.read(&[cancel(region), register(region)].concat(), arrival);
        assert_eq!(violation, None);
        assert_eq!(seen[1].head, register(region));
        assert_eq!(seen[1].descriptors.len(), 1);
    }
    assert_eq!(wire.open_descriptors(), 0);
}

#[test]
fn a_header_that_announces_too_much_allocates_nothing() {
    let mut of_call = call_with(b"", b"");
    of_call.truncate(HEADER_BYTES);
    let reply = Reply {
        call: 1,
        code: Code::Ok,
        lane: LaneNumber::Inline,
        payload_bytes: u64::MAX,
        offset: 0,
        parts: Parts::default(),
        response: b"",
        message: "",
    };
    let of_reply = Frame::Reply(reply).encode(u64::MAX)[..HEADER_BYTES].to_vec();
    for header in [of_call, of_reply] {
        for (at, bytes) in [(4, 4), (8, 8)] {
            let mut header = header.clone();
            header[at..at + bytes].fill(0xff);
            let mut wire = Wire::new();
            let (seen, violation) = wire.read(&header, Arrival::None);
            assert!(seen.is_empty());
            assert!(matches!(violation, Some(Violation::Wire(_))), "{violation:?}");
            assert_eq!(wire.assembler.staging.capacity(), STAGING_BYTES);
            assert!(matches!(wire.assembler.state, State::Header));
        }
    }
}

/// Room is made for a body only when its header is here, and then only for what is allowed.
#[test]
fn the_largest_body_allowed_is_all_that_is_made_room_for() {
    let request = pattern(Limits::default().message_bytes_max as usize);
    let frame = call_with(b"", &request);
    let mut wire = Wire::new();
    wire.read(&frame[..HEADER_BYTES], Arrival::None);
    wire.assembler.space();
    let staging_bytes = wire.assembler.staging.len();
    assert!((frame.len()..frame.len() + STAGING_BYTES).contains(&staging_bytes));
}

#[test]
fn a_frame_must_keep_growing_but_not_while_nobody_reads() {
    let mut wire = Wire::new();
    assert_eq!(wire.assembler.deadline(), None);
    let start = wire.now;
    wire.read(&cancel(1)[..5], Arrival::None);
    assert_eq!(wire.assembler.deadline(), Some(start + FRAME_STALL_TIMEOUT));
    let later = start + Duration::from_secs(9);
    wire.now = later;
    wire.read(&cancel(1)[5..10], Arrival::None);
    assert_eq!(wire.assembler.deadline(), Some(later + FRAME_STALL_TIMEOUT));
    let much_later = start + Duration::from_secs(60);
    wire.assembler.pause_reading();
    assert_eq!(wire.assembler.deadline(), None);
    wire.assembler.resume_reading(much_later);
    let again = Some(much_later + FRAME_STALL_TIMEOUT);
    assert_eq!(wire.assembler.deadline(), again);
    wire.read(&cancel(1)[10..], Arrival::None);
    assert_eq!(wire.assembler.deadline(), None, "no frame is under way");
}
