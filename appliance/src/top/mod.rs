//! `berth top`: a running appliance, live in a terminal.

mod rates;
mod view;

use std::{
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use ratatui::{
    DefaultTerminal, Terminal,
    backend::TestBackend,
    crossterm::event::{self, Event, KeyCode, KeyModifiers},
};

use self::view::View;
use crate::cli::AdminAddress;

/// How often the appliance is asked.
const EVERY: Duration = Duration::from_secs(1);

/// Columns of a frame that is printed.
const WIDTH: u16 = 120;

/// Show a running appliance live: ports, latencies, lcores, losses, leases. Quit with q.
#[derive(Debug, Clone, Args)]
pub struct TopCommand {
    #[command(flatten)]
    of: AdminAddress,
    /// Print one frame, of one second, and end.
    #[arg(long)]
    once: bool,
}

impl TopCommand {
    /// Shows until the user quits with `q`, Esc or Ctrl-C; with `--once` it prints one frame and ends.
    pub fn run(&self) -> anyhow::Result<()> {
        let mut view = View::new(self.of.status()?.0);
        if self.once {
            thread::sleep(EVERY);
            view.update(self.of.status()?.0);
            let mut terminal = Terminal::new(TestBackend::new(WIDTH, view.height()))?;
            terminal.draw(|frame| view.draw(frame))?;
            let buffer = terminal.backend().buffer();
            for line in buffer.content().chunks(usize::from(WIDTH)) {
                println!("{}", line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end());
            }
            return Ok(());
        }
        let mut terminal = ratatui::try_init()?;
        let ended = self.live(&mut terminal, view);
        ratatui::restore();
        ended
    }

    fn live(&self, terminal: &mut DefaultTerminal, mut view: View) -> anyhow::Result<()> {
        let mut next = Instant::now() + EVERY;
        loop {
            terminal.draw(|frame| view.draw(frame))?;
            if event::poll(next.saturating_duration_since(Instant::now()))? {
                if let Event::Key(key) = event::read()?
                    && (matches!(key.code, KeyCode::Char('q') | KeyCode::Esc)
                        || key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL))
                {
                    return Ok(());
                }
                // Any other event, such as a new size, is shown at once.
                continue;
            }
            match self.of.status() {
                Ok((status, _)) => view.update(status),
                Err(e) => view.lose(&e),
            }
            next = Instant::now() + EVERY;
        }
    }
}
