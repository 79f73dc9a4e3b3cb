//! Calls a second that return nothing, sent together and one by one: `memsets HOST:PORT`.

use std::{
    env,
    time::{Duration, Instant},
};

use berth_hip::{Client, Result};

/// How long each way is measured, a round at a time.
const ROUND: Duration = Duration::from_millis(500);
const ROUNDS: usize = 5;

fn main() -> Result<()> {
    let worker = env::args().nth(1).unwrap_or_else(|| "127.0.0.1:18515".into());
    let device = Client::connect(worker.as_str())?.device(0)?;
    let buffer = device.alloc(64)?;
    let mut best = [0.0_f64; 2];
    for round in 0..2 * ROUNDS {
        let one_by_one = round % 2;
        let (begin, mut calls) = (Instant::now(), 0_u32);
        while begin.elapsed() < ROUND {
            for byte in 0..100 {
                buffer.fill(byte)?;
                if one_by_one == 1 {
                    device.session().flush()?;
                }
            }
            calls += 100;
        }
        device.synchronize()?;
        best[one_by_one] = best[one_by_one].max(f64::from(calls) / begin.elapsed().as_secs_f64());
    }
    println!("together: {:.0} calls/s, one by one: {:.0} calls/s", best[0], best[1]);
    Ok(())
}
