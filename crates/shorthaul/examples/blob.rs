//! Parts of a file, read by a server straight into its client's memory:
//! `cargo run --release -p shorthaul --example blob -- Cargo.lock`

use std::fs::File;

use shorthaul::{DirectClient, InboundCall, Server, Status};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "Cargo.toml".into());
    let socket = std::env::temp_dir().join(format!("shorthaul-blob-{}.sock", std::process::id()));
    let file = File::open(&name)?;
    let file_bytes = file.metadata()?.len();

    // The server answers "read", whose request is an offset, with what the file has from there.
    let read = move |call: &mut InboundCall| -> Result<(), Status> {
        let offset = call.request().first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let left = file_bytes.saturating_sub(offset);
        let bytes = left.min(call.payload_bytes_max());
        call.relay(&file, offset..offset + bytes)?;
        call.reply(&left.to_le_bytes())
    };
    let _server = Server::bind(&socket)?.start(read)?;

    // The client reads it through one buffer.
    let mut client = DirectClient::connect(&socket)?;
    let mut buffer = client.buffer(1 << 20)?;
    let mut offset = 0_u64;
    while offset < file_bytes {
        let request = offset.to_le_bytes();
        let reply = client.call("read").request(&request).into(buffer).send()?;
        println!("{} bytes at {offset} by {}, sum {}", reply.len(), reply.lane(), reply.sum(1));
        offset += reply.len() as u64;
        buffer = reply.into_buffer().ok_or("the buffer comes back")?;
    }
    Ok(())
}
