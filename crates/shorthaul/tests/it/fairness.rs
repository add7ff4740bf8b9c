//! One client with much under way does not hold up the rest.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shorthaul::{Client, Code, Error, InboundCall, Server, ServerOptions, Status};
use tempfile::TempDir;

/// A server with one worker, whose "gate" calls wait to be let through, and which notes the order
/// in which it carries calls out.
struct Gated {
    _folder: TempDir,
    path: std::path::PathBuf,
    _server: shorthaul::RunningServer,
    arrived: Receiver<()>,
    open: Sender<()>,
    order: Arc<Mutex<Vec<String>>>,
}

fn gated() -> Gated {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let (arrive, arrived) = channel();
    let (open, opened) = channel();
    let (arrive, opened) = (Mutex::new(arrive), Mutex::new(opened));
    let order = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&order);
    let serve = move |call: &mut InboundCall| -> Result<(), Status> {
        if call.method() == "gate" {
            arrive.lock().unwrap().send(()).unwrap();
            opened.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        } else {
            noted.lock().unwrap().push(call.method().to_owned());
        }
        let bytes = call.payload_bytes_max() as usize;
        call.payload(bytes)?.fill(1, bytes)?;
        call.reply(&[])
    };
    let options = ServerOptions { workers: 1, ..ServerOptions::default() };
    let server = Server::bind_with(&path, options).unwrap().start(serve).unwrap();
    Gated { _folder: folder, path, _server: server, arrived, open, order }
}

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn a_small_call_passes_many_large_ones() {
    let gated = gated();
    let (noisy, small) =
        (Client::connect(&gated.path).unwrap(), Client::connect(&gated.path).unwrap());
    let buffers: Vec<_> = (0..32).map(|_| noisy.buffer(8 << 20).unwrap()).collect();
    // The worker is held while everything queues up behind it, the small call last.
    let gate = Client::start(small.call("gate")).unwrap();
    gated.arrived.recv_timeout(PATIENCE).unwrap();
    let large: Vec<_> =
        buffers.into_iter().map(|b| Client::start(noisy.call("large").into(b)).unwrap()).collect();
    let pending = Client::start(small.call("small").inline(4096)).unwrap();
    while noisy.open_calls() + small.open_calls() < 34 {
        std::thread::yield_now();
    }
    // A call of the noisy client's own, answered out of hand, shows that the others have arrived.
    let known = noisy.buffer(64).unwrap();
    let arrived = small.buffer(64).unwrap();
    gated.open.send(()).unwrap();
    gate.wait().unwrap();
    assert_eq!(pending.wait().unwrap().len(), 4096);
    for call in large {
        assert_eq!(call.wait().unwrap().len(), 8 << 20);
    }
    drop((known, arrived));
    let order = gated.order.lock().unwrap();
    let place = order.iter().position(|method| method == "small").unwrap();
    assert!(place <= 2, "the small call came {place}th: {order:?}");
}

#[test]
fn while_all_have_calls_waiting_each_is_served_as_many_bytes() {
    let gated = gated();
    let gate = Client::connect(&gated.path).unwrap();
    let noisy = Client::connect(&gated.path).unwrap();
    let modest: Vec<_> = (0..15).map(|_| Client::connect(&gated.path).unwrap()).collect();
    let names: Vec<String> = (0..modest.len()).map(|index| format!("modest {index}")).collect();
    // The worker is held while everything queues up behind it.
    let held = Client::start(gate.call("gate")).unwrap();
    gated.arrived.recv_timeout(PATIENCE).unwrap();
    let buffers: Vec<_> = (0..16).map(|_| noisy.buffer(LARGE).unwrap()).collect();
    let mut calls: Vec<_> =
        buffers.into_iter().map(|b| Client::start(noisy.call("large").into(b)).unwrap()).collect();
    for (client, name) in modest.iter().zip(&names) {
        calls.extend((0..64).map(|_| Client::start(client.call(name).inline(SMALL)).unwrap()));
    }
    // A region registered shows that what was sent before it has arrived.
    drop([&noisy].into_iter().chain(&modest).map(|c| c.buffer(64).unwrap()).collect::<Vec<_>>());
    gated.open.send(()).unwrap();
    held.wait().unwrap();
    calls.into_iter().for_each(|call| drop(call.wait().unwrap()));
    let order = gated.order.lock().unwrap();
    // From its beginning up to where the first of them has been served all.
    let end = names.iter().map(|name| order.iter().rposition(|done| done == name).unwrap()).min();
    let served = |name: &str, bytes: usize| {
        order[..end.unwrap()].iter().filter(|done| *done == name).count() * bytes
    };
    // Within a quantum of each other, and the one call that may be over it.
    for name in &names {
        let bytes = served(name, SMALL);
        assert!(bytes + QUANTUM + SMALL >= 64 * SMALL, "{name}: {bytes}");
    }
    let large = served("large", LARGE);
    assert!(large <= 64 * SMALL + QUANTUM + LARGE, "{large}");
}

const QUANTUM: usize = 1 << 20;
const LARGE: usize = 8 << 20;
const SMALL: usize = 64 << 10;

#[test]
fn too_many_calls_are_refused_before_they_are_sent() {
    let gated = gated();
    let client = Client::connect(&gated.path).unwrap();
    let gate = Client::start(client.call("gate")).unwrap();
    gated.arrived.recv_timeout(PATIENCE).unwrap();
    let calls_max = client.limits().calls_max as usize;
    let more: Vec<_> =
        (1..calls_max).map(|_| Client::start(client.call("more")).unwrap()).collect();
    let refused = client.call("more").send().unwrap_err();
    assert!(matches!(refused.error(), Error::LimitReached(_)), "{refused}");
    assert_eq!(refused.error().code(), Code::ResourceExhausted);
    assert!(refused.error().is_retryable() && !refused.error().closes_connection());
    gated.open.send(()).unwrap();
    gate.wait().unwrap();
    for call in more {
        call.wait().unwrap();
    }
    client.call("more").send().unwrap();
}
