//! The automatic choice of a lane: what it takes, why it says it did, and that it learns.

use std::sync::Arc;
use std::time::Duration;

use shorthaul::limits::{Limits, UserLimits};
use shorthaul::{
    AutoPolicy, Client, ClientOptions, DirectClient, Error, InboundCall, Lane, Reason, Reply,
    ServerOptions, Status,
};
use shorthaul_platform::memory::page_bytes;

use super::service::{Gate, PATIENCE, check, pattern, request, serve, start};

const LARGE: usize = 300_000;

fn auto(client: &mut DirectClient, method: &str, bytes: usize) -> Reply {
    let request = request(bytes, 7);
    let reply = client.call(method).request(&request).auto(1 << 30).send().unwrap();
    check(&reply, bytes, 7);
    reply
}

#[test]
fn it_learns_how_large_answers_are() {
    let running = start(ServerOptions::default(), serve);
    let mut client = DirectClient::connect(&running.path).unwrap();
    let took = |reply: &Reply| (reply.lane(), reply.reason());
    assert_eq!(took(&auto(&mut client, "a", LARGE)), (Lane::Inline, Reason::SizeUnknown));
    for _ in 0..3 {
        assert_eq!(took(&auto(&mut client, "a", LARGE)), (Lane::FillMap, Reason::BufferFits));
    }
    assert_eq!(running.server.stats().mappings_made, 1, "one buffer serves all calls");
    // What is small is copied, whatever room there is.
    assert_eq!(took(&auto(&mut client, "a", 100)), (Lane::Inline, Reason::Small));
    // Larger than expected: it travels all the same, and the next one has room.
    let larger = 2 << 20;
    assert_eq!(took(&auto(&mut client, "a", larger)), (Lane::Sealed, Reason::BufferTooSmall));
    assert_eq!(took(&auto(&mut client, "a", larger)), (Lane::FillMap, Reason::BufferFits));
    // Another method is another matter; what it needs there is already.
    assert_eq!(took(&auto(&mut client, "b", LARGE)).1, Reason::SizeUnknown);
    assert_eq!(took(&auto(&mut client, "b", LARGE)), (Lane::FillMap, Reason::BufferFits));
    assert_eq!(running.server.stats().mappings_made, 2);
}

#[test]
fn replies_that_are_held_keep_their_buffers() {
    let running = start(ServerOptions::default(), serve);
    let mut client = DirectClient::connect(&running.path).unwrap();
    let replies: Vec<_> = (0..4).map(|_| auto(&mut client, "a", LARGE)).collect();
    for reply in &replies {
        check(reply, LARGE, 7);
    }
    drop(replies);
    // Taken out of its reply, a buffer is the caller's.
    let buffer = auto(&mut client, "a", LARGE).into_buffer().unwrap();
    let reply = client.call("a").request(&request(10, 1)).into(buffer).send().unwrap();
    check(&reply, 10, 1);
    // An inline reply leaves the buffer that it did without where it is.
    assert!(auto(&mut client, "a", 10).into_buffer().is_none());
}

#[test]
fn thresholds_can_be_overridden() {
    let running = start(ServerOptions::default(), serve);
    let auto_policy = AutoPolicy {
        inline_bytes_max: 100,
        buffer_bytes_max: 10_000,
        sealed: false,
        ..AutoPolicy::default()
    };
    let options = ClientOptions { auto: auto_policy, ..ClientOptions::default() };
    let mut client = DirectClient::connect_with(&running.path, &options).unwrap();
    for _ in 0..2 {
        let reply = auto(&mut client, "small", 100);
        assert_eq!(reply.lane(), Lane::Inline);
    }
    auto(&mut client, "fits", 101);
    assert_eq!(auto(&mut client, "fits", 101).lane(), Lane::FillMap);
    auto(&mut client, "large", 10_001);
    let reply = auto(&mut client, "large", 10_001);
    assert_eq!((reply.lane(), reply.reason()), (Lane::Inline, Reason::TooLargeToKeep));
}

#[test]
fn a_server_without_room_for_buffers_is_served_without() {
    let limits = Limits { regions_max: 1, ..Limits::default() };
    let running = start(ServerOptions { limits, ..ServerOptions::default() }, serve);
    let mut client = DirectClient::connect(&running.path).unwrap();
    let _mine = client.buffer(64).unwrap();
    auto(&mut client, "a", LARGE);
    for _ in 0..3 {
        let reply = auto(&mut client, "a", LARGE);
        assert_eq!((reply.lane(), reply.reason()), (Lane::Inline, Reason::PeerCannot));
    }
}

#[test]
fn more_than_was_allowed_for_is_an_error_with_the_size() {
    let running = start(ServerOptions::default(), serve);
    let mut client = DirectClient::connect(&running.path).unwrap();
    for _ in 0..3 {
        let failed = client.call("a").request(&request(LARGE, 1)).auto(LARGE - 1).send();
        let Err(Error::Status(status)) = failed.map_err(Error::from) else { panic!() };
        assert_eq!(status.bytes_needed, Some(LARGE as u64));
    }
}

#[test]
fn uploads_learn_too() {
    let put = |call: &mut InboundCall| -> Result<(), Status> {
        let is_right = call.upload()?.into_slice()? == pattern(LARGE, 1);
        call.reply(&[u8::from(is_right)])
    };
    let running = start(ServerOptions::default(), put);
    let payload = pattern(LARGE, 1);
    let client = Client::connect(&running.path).unwrap();
    let put = || client.call("put").payload(&payload).send().unwrap();
    let took = |reply: &Reply| {
        assert_eq!(reply.response(), [1]);
        (reply.upload_lane(), reply.upload_reason())
    };
    assert_eq!(took(&put()), (Lane::Inline, Reason::SizeUnknown));
    assert_eq!(took(&put()), (Lane::CopyOut, Reason::BufferFits));
    assert_eq!(took(&put()), (Lane::CopyOut, Reason::BufferFits));
    let reply = client.call("put").payload(b"few").send().unwrap();
    assert_eq!((reply.upload_lane(), reply.upload_reason()), (Lane::Inline, Reason::Small));
    assert_eq!(running.server.stats().mappings_made, 1);
}

#[test]
fn many_threads_choose_at_once() {
    let running = start(ServerOptions::default(), serve);
    let client = Client::connect(&running.path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8_u8 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..40_usize {
                    let bytes = round * round * 100;
                    let request = request(bytes, thread);
                    let call = client.call("a").request(&request).auto(1 << 20);
                    check(&call.send().unwrap(), bytes, thread);
                }
            });
        }
    });
    drop(client);
    assert!(running.server.stop(Duration::from_secs(5)));
}

/// Mappings of this process that are `bytes` long and called as buffers are.
fn mappings(bytes: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_one = |line: &&str| {
        let (start, end) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        line.contains("shorthaul-buffer") && address(end) - address(start) == bytes
    };
    maps.lines().filter(is_one).count()
}

#[test]
fn a_client_that_is_gone_keeps_no_buffer() {
    // A size that no other test has.
    let bytes = 733 * page_bytes();
    let limits = Limits { region_bytes_max: bytes as u64, ..Limits::default() };
    let running = start(ServerOptions { limits, ..ServerOptions::default() }, serve);
    let client = Client::connect(&running.path).unwrap();
    let request = request(bytes - 1, 7);
    let call = || client.call("a").request(&request).auto(bytes).send().unwrap();
    let lanes = [call().lane(), call().lane()];
    assert_eq!(lanes, [Lane::Inline, Lane::FillMap]);
    let outlives_it = call();
    let more = call();
    assert!(mappings(bytes) > 0);
    drop(more);
    drop(client);
    assert!(running.server.stop(Duration::from_secs(5)));
    check(&outlives_it, bytes - 1, 7);
    drop(outlives_it);
    assert_eq!(mappings(bytes), 0);
}

/// Takes any payload, and answers with ten bytes if there is room.
fn answer_ten(call: &mut InboundCall) -> Result<(), Status> {
    call.upload()?.into_slice()?;
    if call.payload_bytes_max() >= 10 {
        call.payload(10)?.fill(3, 10)?;
    }
    call.reply(b"")
}

#[test]
fn the_clients_own_buffers_stay_with_it() {
    let running = start(ServerOptions::default(), answer_ten);
    let mut client = DirectClient::connect(&running.path).unwrap();
    let payload = pattern(LARGE, 1);
    let mut buffer = client.buffer(4096).unwrap();
    for round in 0..4 {
        let reply = client.call("put").payload(&payload).into(buffer).send().unwrap();
        assert_eq!(reply.upload_lane() == Lane::CopyOut, round > 0);
        buffer = reply.into_buffer().unwrap();
    }
    assert_eq!(running.server.stats().mappings_made, 2, "one each way");
    let reply = client.call("put").payload(&payload).send().unwrap();
    assert!(reply.into_upload_buffer().is_none(), "it is not the caller's");
    // Nor are they lost where nothing could be sent.
    let too_long = vec![0; 1 << 20];
    client.call("put").payload(&payload).request(&too_long).send().unwrap_err();
    client.call("put").payload(&payload).part_lengths(&[1, 2]).send().unwrap_err();
    client.call("put").payload(&payload).into_fresh(1 << 40).send().unwrap_err();
    let reply = client.call("put").payload(&payload).send().unwrap();
    assert_eq!(reply.upload_lane(), Lane::CopyOut);
    assert_eq!(running.server.stats().mappings_made, 2, "still the same");
}

#[test]
fn the_buffer_that_a_call_did_without_is_not_given_out() {
    let nothing = |call: &mut InboundCall| -> Result<(), Status> {
        if call.request() == b"nothing" {
            return call.reply(b"");
        }
        call.payload(LARGE)?.fill(1, LARGE)?;
        call.reply(b"")
    };
    let running = start(ServerOptions::default(), nothing);
    let mut client = DirectClient::connect(&running.path).unwrap();
    for _ in 0..2 {
        client.call("a").auto(LARGE).send().unwrap();
    }
    let started = running.server.stats().mappings_made;
    let reply = client.call("a").request(b"nothing").auto(LARGE).send().unwrap();
    assert_eq!(reply.lane(), Lane::None);
    assert!(reply.into_buffer().is_none());
    client.call("a").auto(LARGE).send().unwrap();
    assert_eq!(running.server.stats().mappings_made, started);
}

#[test]
fn no_buffer_is_lost_with_a_call_that_can_not_be_made() {
    let running = start(ServerOptions::default(), answer_ten);
    let mut client = DirectClient::connect(&running.path).unwrap();
    let buffer = client.buffer(4096).unwrap();
    let call = client.call("put").payload_from(buffer, 0..64).into_fresh(1 << 40);
    let failed = call.send().unwrap_err();
    assert!(matches!(failed.error(), Error::LimitReached(_)));
    assert!(failed.into_buffers().1.is_some());
}

#[test]
fn an_upload_over_the_limit_for_inline_travels_sealed() {
    let limits = Limits { inline_bytes_max: 64 << 10, ..Limits::default() };
    let running = start(ServerOptions { limits, ..ServerOptions::default() }, answer_ten);
    let payload = pattern(LARGE, 1);
    let client = Client::connect(&running.path).unwrap();
    let put = || client.call("put").payload(&payload).send().unwrap();
    let took = |reply: &Reply| (reply.upload_lane(), reply.upload_reason());
    assert_eq!(took(&put()), (Lane::Sealed, Reason::SizeUnknown));
    assert_eq!(took(&put()), (Lane::CopyOut, Reason::BufferFits));
}

#[test]
fn what_is_larger_than_expected_is_not_called_small() {
    let running = start(ServerOptions::default(), serve);
    let mut client = DirectClient::connect(&running.path).unwrap();
    auto(&mut client, "a", 10);
    let reply = auto(&mut client, "a", LARGE);
    assert_eq!((reply.lane(), reply.reason()), (Lane::Inline, Reason::BufferTooSmall));
    let running = start(ServerOptions::default(), answer_ten);
    let mut client = DirectClient::connect(&running.path).unwrap();
    let few = vec![1; 3000];
    client.call("put").payload(&few[..10]).send().unwrap();
    for bytes in [10, 3000] {
        let reply = client.call("put").payload(&few[..bytes]).send().unwrap();
        let reason = if bytes == 10 { Reason::Small } else { Reason::BufferTooSmall };
        assert_eq!((reply.upload_lane(), reply.upload_reason()), (Lane::Inline, reason));
    }
}

#[test]
fn a_buffer_is_waited_for_no_longer_than_for_the_call() {
    let gate = Gate::new();
    let shut = Arc::clone(&gate);
    let handler = move |call: &mut InboundCall| -> Result<(), Status> {
        if call.method() == "wait" {
            shut.pass();
        }
        serve(call)
    };
    let options = ServerOptions { inline_handlers: true, ..ServerOptions::default() };
    let running = start(options, handler);
    let patient = ClientOptions { deadline: PATIENCE * 10, ..ClientOptions::default() };
    let mut direct = DirectClient::connect_with(&running.path, &patient).unwrap();
    let client = Client::connect_with(&running.path, &patient).unwrap();
    let request = request(LARGE, 7);
    auto(&mut direct, "a", LARGE);
    client.call("a").request(&request).auto(LARGE).send().unwrap();
    // Holds the reactor up, which answers nobody now.
    let other = Client::connect(&running.path).unwrap();
    let pending = Client::start(other.call("wait").request(&request).inline(LARGE)).unwrap();
    gate.wait_for(1);
    let soon = Duration::from_millis(20);
    let late = client.call("a").request(&request).auto(LARGE).deadline(soon).send().unwrap_err();
    assert!(matches!(late.error(), Error::DeadlineExceeded));
    let late = direct.call("a").request(&request).auto(LARGE).deadline(soon).send().unwrap_err();
    assert!(matches!(late.error(), Error::DeadlineExceeded));
    gate.open();
    pending.wait().unwrap();
    auto(&mut direct, "a", LARGE);
}

#[test]
fn a_sealed_answer_is_charged_for_what_it_became() {
    let user_limits = UserLimits { lent_bytes_max: 1 << 20, ..UserLimits::default() };
    let options = ServerOptions { user_limits, ..ServerOptions::default() };
    let handler = |call: &mut InboundCall| -> Result<(), Status> {
        call.payload(600 << 10)?.fill(1, 10)?;
        call.reply(b"")
    };
    let running = start(options, handler);
    let mut client = DirectClient::connect(&running.path).unwrap();
    let held: Vec<_> = (0..10).map(|_| client.call("a").sealed(1 << 20).send().unwrap()).collect();
    assert!(held.iter().all(|reply| reply.len() == 10));
}

#[test]
fn kept_buffers_make_room_for_the_callers_own() {
    let limits = Limits { regions_max: 1, ..Limits::default() };
    let running = start(ServerOptions { limits, ..ServerOptions::default() }, serve);
    let mut direct = DirectClient::connect(&running.path).unwrap();
    auto(&mut direct, "a", LARGE);
    assert_eq!(auto(&mut direct, "a", LARGE).lane(), Lane::FillMap);
    let _own = direct.buffer(64).unwrap();
    let shared = Client::connect(&running.path).unwrap();
    for lane in [Lane::Inline, Lane::FillMap] {
        let request = request(LARGE, 7);
        assert_eq!(shared.call("a").request(&request).auto(LARGE).send().unwrap().lane(), lane);
    }
    let _own = shared.buffer(64).unwrap();
}
