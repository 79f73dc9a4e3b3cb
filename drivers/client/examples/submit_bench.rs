//! TASKLET_SUBMIT by hash, and how soon a CANCEL is answered, as JSON lines:
//! `cargo run --release -p berth-client --example submit_bench -- CONTROL IDENTITY ROUNDS`.
//!
//! CONTROL is the QUIC address of a node with `[tasklet]`, and a `sync_wait_ms` below its `max_wall_ms`; IDENTITY the key file of an
//! enrolled client with `exec`. Each round submits a module that does nothing, and in turn with it the same with a limit that the node
//! refuses once it has verified the op. Then runs are cancelled that loop, and that fill 16 MiB of memory again and again.
#![allow(clippy::doc_markdown)] // the documents' names of ops

use std::{path::Path, sync::Arc, time::Instant};

use berth_client::{Client, Error, Tasklet, Token};
use berth_wire::fabric::{Perms, Status, TaskletLimits, TaskletStatus};

/// Submissions of each kind in a round.
const EACH: usize = 200;
const CANCELS: usize = 11;
const LIMITS: TaskletLimits =
    TaskletLimits { max_fuel: 10_000_000_000, max_linear_memory: 16 << 20, max_output_bytes: 0, max_hostcalls: 0 };

/// A module, but for its code and the pages of its memory, and the SHA-256 of the whole.
struct Module {
    pages: &'static [u8],
    code: &'static [u8],
    sha256: &'static str,
}

/// `i64.const 0`
const NOTHING: Module = Module {
    pages: &[1],
    code: &[0x42, 0, 0x0B],
    sha256: "a515ee166f6f54a107dd2a45c7cb4c8fdef9fdc203e141197b631b7d4727a60c",
};
/// `loop br 0 end i64.const 0`
const LOOP: Module = Module {
    pages: &[1],
    code: &[0x03, 0x40, 0x0C, 0, 0x0B, 0x42, 0, 0x0B],
    sha256: "8800c96d87a26e51b561e994b98e68f7026b74124f77e5cb5f9168049cd530f4",
};
/// `loop i32.const 0 i32.const 1 i32.const 16777216 memory.fill br 0 end i64.const 0`
const FILL: Module = Module {
    pages: &[0x80, 2],
    code: &[0x03, 0x40, 0x41, 0, 0x41, 1, 0x41, 0x80, 0x80, 0x80, 8, 0xFC, 0x0B, 0, 0x0C, 0, 0x0B, 0x42, 0, 0x0B],
    sha256: "850470d7e5ba3fc11b1d4615742de15eaad8a00673b347a6a4dfce3203fe97d7",
};

impl Module {
    fn tasklet(&self) -> Tasklet {
        let mut wasm = b"\0asm\x01\0\0\0\x01\x07\x01\x60\x02\x7F\x7F\x01\x7E\x03\x02\x01\0".to_vec();
        wasm.extend([5, self.pages.len() as u8 + 2, 1, 0]);
        wasm.extend(self.pages);
        wasm.extend(b"\x07\x18\x02\x06memory\x02\0\x0Btasklet_run\0\0");
        wasm.extend([10, self.code.len() as u8 + 3, 1, self.code.len() as u8 + 1, 0]);
        wasm.extend(self.code);
        let mut sha256 = [0; 32];
        for (byte, at) in sha256.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&self.sha256[at..at + 2], 16).expect("hexadecimal");
        }
        Tasklet {
            mem_resource_id: 0,
            cpu_resource_id: 0,
            sha256,
            wasm,
            caps: Vec::new(),
            input: Vec::new(),
            limits: LIMITS,
        }
    }
}

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let [_, control, identity, rounds] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("arguments: CONTROL IDENTITY ROUNDS".into());
    };
    let identity = Arc::new(berth_tls::key_file::read(Path::new(identity))?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::quic(identity, control.parse()?, None).await?;
        let token = client.cap_request(Perms::EXEC, 300, 0, None).await?;
        submits(&client, &token, rounds.parse()?).await?;
        cancels(&client, &token, "loop", &LOOP).await?;
        cancels(&client, &token, "fill", &FILL).await
    })
}

async fn submits(client: &Client, token: &Token, rounds: usize) -> Result<(), Failure> {
    let mut asked = NOTHING.tasklet();
    client.tasklet_submit(token, &asked).await?;
    asked.wasm.clear();
    let mut refused = NOTHING.tasklet();
    refused.wasm.clear();
    refused.limits.max_hostcalls = u32::MAX;
    for _ in 0..rounds {
        let (mut ran, mut verified) = (Vec::new(), Vec::new());
        for _ in 0..EACH {
            let begun = Instant::now();
            let said = client.tasklet_submit(token, &asked).await?;
            ran.push(begun.elapsed());
            if said.status != TaskletStatus::Ok {
                return Err(format!("{}", said.status).into());
            }
            let begun = Instant::now();
            let said = client.tasklet_submit(token, &refused).await;
            verified.push(begun.elapsed());
            if !matches!(said, Err(Error::Refused { status: Status::CapacityExceeded, .. })) {
                return Err("a limit that no node has was taken".into());
            }
        }
        let [ran, verified] = [ran, verified].map(|mut times| {
            times.sort_unstable();
            times[EACH / 2].as_secs_f64() * 1e6
        });
        println!("{{\"case\": \"submit\", \"ours\": {ran:.1}, \"theirs\": {verified:.1}}}");
    }
    Ok(())
}

async fn cancels(client: &Client, token: &Token, case: &str, module: &Module) -> Result<(), Failure> {
    for _ in 0..CANCELS {
        let said = client.tasklet_submit(token, &module.tasklet()).await?;
        if said.status != TaskletStatus::Unknown {
            return Err(format!("{case}: {}", said.status).into());
        }
        let begun = Instant::now();
        let cancelled = client.tasklet_cancel(said.tasklet_id).await?;
        let took = begun.elapsed().as_secs_f64() * 1e3;
        if cancelled != TaskletStatus::Ok {
            return Err(format!("{case}: CANCEL {cancelled}").into());
        }
        println!("{{\"case\": \"cancel_{case}\", \"ours\": {took:.2}}}");
    }
    Ok(())
}
