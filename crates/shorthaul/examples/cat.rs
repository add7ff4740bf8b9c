//! cat(1) as a relay: files go to standard output, whatever that is, without being looked at.
//!
//! ```sh
//! cargo run --release --example cat -- FILE… | wc -c
//! ```

use std::error::Error;
use std::fs::File;
use std::io;

use shorthaul::relay::{Fault, Relay};

fn main() -> Result<(), Box<dyn Error>> {
    let mut relay = Relay::new();
    for path in std::env::args_os().skip(1) {
        let file = File::open(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        match relay.run(&file, .., io::stdout()) {
            Ok(relayed) => eprintln!(
                "{}: {} bytes by {} in {} calls",
                path.display(),
                relayed.bytes,
                relayed.method,
                relayed.calls
            ),
            // `| head` has seen enough.
            Err(error) if matches!(error.fault, Fault::SinkClosed) => break,
            Err(error) => return Err(format!("{}: {error}", path.display()).into()),
        }
    }
    Ok(())
}
