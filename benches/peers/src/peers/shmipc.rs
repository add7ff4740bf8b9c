//! shmipc, ByteDance's: slices of a shared pool, told of over a Unix socket or by eventfd.

use std::cell::RefCell;
use std::os::unix::net::SocketAddr;

use anyhow::{Context, Result};
use shmipc::Listener;
use shmipc::config::{Config, SizePercentPair};
use shmipc::consts::MemMapType;
use shmipc::session::{SessionManager, SessionManagerConfig};
use shmipc::stream::Stream;
use shmipc::transport::{DefaultUnixConnect, DefaultUnixListen};
use tokio::runtime::Runtime;

use super::{Caller, Habits, Peer, tasks};
use crate::meeting::Meeting;
use crate::work::{Load, REQUEST_BYTES, Request};

pub(super) fn all() -> Vec<Box<dyn Peer>> {
    vec![Box::new(Shmipc { is_tuned: false }), Box::new(Shmipc { is_tuned: true })]
}

#[derive(Clone, Copy, Debug)]
struct Shmipc {
    is_tuned: bool,
}

impl Peer for Shmipc {
    fn name(&self) -> &'static str {
        if self.is_tuned { "shmipc tuned" } else { "shmipc" }
    }

    fn about(&self) -> &'static str {
        if self.is_tuned {
            "memfd, eventfds (V4), slices of the payload's size as in its own bench, a small pool"
        } else {
            "as it comes: a pool of 32 MiB in slices of up to 128 KiB"
        }
    }

    fn package(&self) -> Option<&'static str> {
        Some("shmipc")
    }

    fn habits(&self) -> Habits {
        Habits { pipelines: true, ..Habits::default() }
    }

    fn refuses(&self, bytes: usize) -> Option<&'static str> {
        (!self.is_tuned && bytes > POOL_BYTES_DEFAULT).then_some("its pool is smaller")
    }

    /// The free slices are a queue, so all of them are used in turn.
    fn calls_to_warm_up(&self, bytes: usize) -> u64 {
        if self.is_tuned {
            SLICES as u64 * 2
        } else {
            (POOL_BYTES_DEFAULT / bytes.max(8192)) as u64
        }
    }

    fn serve(&self, meeting: &Meeting) -> Result<()> {
        tasks::runtime()?.block_on(async {
            let address = SocketAddr::from_pathname(meeting.socket())?;
            let config = self.config(meeting)?;
            let mut listener = Listener::new(DefaultUnixListen, address, config).await?;
            meeting.ready()?;
            let piece_bytes = if self.is_tuned { usize::MAX } else { PIECE_BYTES };
            loop {
                let stream = listener.accept().await?;
                tokio::spawn(async move { answer(stream, piece_bytes).await });
            }
        })
    }

    fn connect(&self, meeting: &Meeting) -> Result<Box<dyn Caller>> {
        let runtime = tasks::runtime()?;
        let config = SessionManagerConfig::new().with_config(self.config(meeting)?);
        let address = SocketAddr::from_pathname(meeting.socket())?;
        let manager = SessionManager::new(config.with_session_num(1), DefaultUnixConnect, address);
        let manager = runtime.block_on(manager)?;
        let streams = runtime.block_on(async {
            (0..meeting.in_flight).map(|_| Ok(manager.get_stream()?)).collect::<Result<_>>()
        })?;
        Ok(Box::new(Client { runtime, streams: RefCell::new(streams), _manager: manager }))
    }
}

impl Shmipc {
    fn config(self, meeting: &Meeting) -> Result<Config> {
        let mut config = Config::default();
        let place = |name: &str| format!("/dev/shm/{}-{name}", meeting.unique());
        config.share_memory_path_prefix = place("pool");
        config.queue_path = place("queue");
        if !self.is_tuned {
            return Ok(config);
        }
        let pair = |bytes: usize, percent| -> Result<_> {
            Ok(SizePercentPair { size: u32::try_from(bytes + HEADER_BYTES)?, percent })
        };
        let slices = SLICES.max(meeting.in_flight + 2);
        let pool_bytes = (meeting.bytes + 2 * HEADER_BYTES) * slices * 100 / 70;
        config.share_memory_buffer_cap = u32::try_from(pool_bytes.max(POOL_BYTES_MIN))?;
        config.buffer_slice_sizes =
            vec![pair(meeting.bytes.max(4096), 70)?, pair(16 << 10, 20)?, pair(64 << 10, 10)?];
        config.mem_map_type = MemMapType::MemMapTypeMemFd;
        Ok(config.with_v4_eventfd())
    }
}

/// Answers one stream's calls until it ends.
async fn answer(mut stream: Stream, piece_bytes: usize) -> Result<()> {
    loop {
        let request = Request::decode(&stream.read_exact_bytes(REQUEST_BYTES).await?)?;
        stream.release_read_and_reuse();
        if request.payload_bytes() == 0 {
            request.make(stream.reserve(request.answer_bytes())?);
        }
        let mut left = request.payload_bytes();
        while left > 0 {
            let piece = left.min(piece_bytes);
            stream.reserve(piece)?.fill(request.fill_byte());
            left -= piece;
        }
        stream.flush(false).await?;
    }
}

struct Client {
    runtime: Runtime,
    /// Those that no call has.
    streams: RefCell<Vec<Stream>>,
    _manager: SessionManager<DefaultUnixConnect>,
}

impl Caller for Client {
    fn run(&mut self, load: &Load) -> Result<()> {
        let streams = &self.streams;
        self.runtime.block_on(tasks::run(load, |request| async move {
            let mut stream = streams.borrow_mut().pop().context("a stream was lost")?;
            stream.write_bytes(&request.encode())?;
            stream.flush(false).await?;
            request.check(&stream.read_exact_bytes(request.answer_bytes()).await?)?;
            stream.release_read_and_reuse();
            streams.borrow_mut().push(stream);
            Ok(())
        }))
    }
}

const POOL_BYTES_DEFAULT: usize = 32 << 20;
const POOL_BYTES_MIN: usize = 2 << 20;
/// Of the default's largest slices, which an answer of several is made of.
const PIECE_BYTES: usize = (128 << 10) - 20;
/// More than a slice's header takes.
const HEADER_BYTES: usize = 256;
/// Few, so that they stay in the cache.
const SLICES: usize = 3;
