//! The other process of a bench: started by the first one, which is its only client.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use shorthaul::{Code, InboundCall, Server, ServerOptions, Status, ThreadRole, peer_policy};
use shorthaul_platform::socket::stream_from_stdin;
use shorthaul_platform::store::sum_slice;
use shorthaul_platform::topology::pin_current_thread;
use shorthaul_platform::usage::process_usage;

use super::process::die_with_parent;
use super::work::{
    EMPTY, MAKE, Pages, RESPONSE_BYTES, Source, USAGE, WaitKind, Work, encode_usage, warm_source,
};

/// Serve one bench; its client is standard input.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServerArgs {
    /// CPU of the reactor.
    #[arg(long)]
    reactor_cpu: u32,
    /// CPU of the worker.
    #[arg(long)]
    worker_cpu: u32,
    /// Run handlers on the reactor.
    #[arg(long)]
    inline_handlers: bool,
    /// How the reactor waits.
    #[arg(long, value_enum)]
    wait: WaitKind,
    /// Largest payload, in bytes.
    #[arg(long)]
    bytes_max: usize,
    /// Which pages the server's memory has.
    #[arg(long, value_enum)]
    huge_pages: Pages,
}

/// Serves until the client has gone.
pub(crate) fn run(args: &ServerArgs) -> Result<()> {
    die_with_parent(args.worker_cpu)?;
    let (reactor_cpu, worker_cpu) = (args.reactor_cpu, args.worker_cpu);
    let pin = move |role| {
        let cpu = if let ThreadRole::Reactor(_) = role { reactor_cpu } else { worker_cpu };
        // A thread that can't be pinned would make every figure wrong: better none.
        pin_current_thread(cpu).expect("the CPU was usable when the bench was planned");
    };
    let options = ServerOptions {
        reactors: 1,
        workers: 1,
        inline_handlers: args.inline_handlers,
        wait: args.wait.wait(),
        huge_pages: args.huge_pages.into(),
        on_thread_start: Some(Arc::new(pin)),
        // Its only client is its parent, on a socketpair of theirs, whatever user that is.
        policy: Some(peer_policy(|_| Ok(()))),
        ..ServerOptions::default()
    };
    let warm = warm_source(args.bytes_max, args.huge_pages)?;
    let mut server =
        Server::without_listener(options).start(move |call: &mut InboundCall| make(call, &warm))?;
    server.adopt(stream_from_stdin()?);
    while server.stats().connections > 0 {
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

/// Makes the payload that a call asks for. The response says whether a kept mapping was used.
fn make(call: &mut InboundCall, warm: &[u8]) -> Result<(), Status> {
    match call.method() {
        EMPTY => return call.reply(&[0; RESPONSE_BYTES]),
        USAGE => return call.reply(&encode_usage(process_usage()?)),
        _ => {}
    }
    let work = Work::decode(call.request()).filter(|_| call.method() == MAKE).ok_or_else(|| {
        Status::new(Code::InvalidArgument, "not a request of this bench: are both of one version?")
    })?;
    if work.method.is_put() {
        return take(call, &work);
    }
    let mut out = call.payload_with(work.bytes, work.method.policy())?;
    match work.source {
        Source::Fill => out.fill(work.fill_byte(), work.bytes)?,
        Source::Warm => {
            let start = work.warm_start();
            let source = warm.get(start..start + work.bytes);
            out.copy_from(source.ok_or_else(|| {
                Status::new(Code::OutOfRange, "a payload larger than the bench was started for")
            })?)?;
        }
    }
    let is_reused = out.is_mapping_reused();
    call.reply(&u64::from(is_reused).to_le_bytes())
}

/// Reads an upload, and answers what it sums up to.
fn take(call: &mut InboundCall, work: &Work) -> Result<(), Status> {
    let payload = call.upload()?;
    if payload.len() != work.bytes {
        return Err(Status::new(Code::DataLoss, "the upload has another length"));
    }
    // Also where nothing is read of it, it is taken in: else nothing would be measured.
    let bytes = payload.into_slice()?;
    let sum = work.consume.stride().map_or(0, |stride| sum_slice(bytes, stride));
    call.reply(&sum.to_le_bytes())
}

const LOOK_AGAIN: Duration = Duration::from_millis(100);
