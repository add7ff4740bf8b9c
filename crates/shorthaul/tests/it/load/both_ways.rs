//! Both sides of a connection send much at once.

use std::thread;

use shorthaul::{Client, DirectClient, InboundCall, ServerOptions, Status};

use super::super::service::{pattern, start};
use super::PATIENCE;

#[test]
fn neither_side_waits_for_the_other_to_read() {
    let running = start(ServerOptions::default(), |call: &mut InboundCall| -> Result<(), Status> {
        let payload = call.upload()?.into_slice()?.to_vec();
        call.payload(payload.len())?.copy_from(&payload)?;
        call.reply(b"")
    });
    let client = Client::connect(&running.path).unwrap();
    let mut direct = DirectClient::connect(&running.path).unwrap();
    thread::scope(|scope| {
        for seed in 0..6 {
            let client = &client;
            scope.spawn(move || {
                for round in 0..4 {
                    let payload = pattern(BYTES, seed * 16 + round);
                    let call = client.call("").payload_inline(&payload).inline(BYTES);
                    assert!(call.deadline(PATIENCE).send().unwrap().to_vec() == payload);
                }
            });
        }
        for round in 0..8 {
            let payload = pattern(BYTES, round);
            let call = direct.call("").payload_inline(&payload).inline(BYTES);
            assert!(call.deadline(PATIENCE).send().unwrap().to_vec() == payload);
        }
    });
    assert_eq!((client.open_calls(), direct.open_calls()), (0, 0));
}

const BYTES: usize = 8 << 20;
