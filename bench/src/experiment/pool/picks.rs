//! Measures the time of picks.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Barrier;
use std::time::Instant;

use encke_pool::{Connected, Pool, PoolError, PoolOptions, Size, Strategy};
use serde::Serialize;

use crate::BenchError;
use crate::load::clock::thread_cpu_ns;
use crate::machine::cores;

/// Picks by one strategy, timed.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Timed {
    /// Clients at once.
    pub(super) clients: u64,
    /// Picks of each client in each run.
    pub(super) picks_each: u64,
    /// How often it was done.
    pub(super) runs: u32,
    /// Time of a pick in nanoseconds: that of a run, divided by its picks, times the cores that could work on it. Of the
    /// runs, the one in the middle.
    pub(super) pick_ns: f64,
    /// Processor time of a pick in nanoseconds, of the run in the middle: what other processes take is not in it.
    pub(super) cpu_pick_ns: f64,
    /// The fastest run's.
    pub(super) pick_ns_least: f64,
    /// Picks of each worker, over all runs.
    pub(super) spread: Vec<u64>,
}

/// Picks by one strategy, of which a run is timed now and then.
pub(super) struct Trial {
    strategy: Strategy,
    /// As many as there are at once; none: one, in the thread that runs the trial.
    clients: Option<u64>,
    picks_each: u64,
    pool: Pool<usize>,
    _connected: Vec<Connected<usize>>,
    times: Vec<f64>,
    cpu_times: Vec<f64>,
    spread: Spread,
}

/// Picks of each worker.
type Spread = [u64; WORKERS];

impl Trial {
    /// Picks by one client that is alone in the pool, in this thread.
    pub(super) fn alone(strategy: Strategy, picks: u64) -> Result<Self, BenchError> {
        Self::new(strategy, None, picks)
    }

    /// Picks by several clients at once, each a thread.
    pub(super) fn together(
        strategy: Strategy,
        clients: u64,
        picks_each: u64,
    ) -> Result<Self, BenchError> {
        Self::new(strategy, Some(clients), picks_each)
    }

    fn new(strategy: Strategy, clients: Option<u64>, picks_each: u64) -> Result<Self, BenchError> {
        let (pool, connected) = pool_of(strategy)?;
        Ok(Self {
            strategy,
            clients,
            picks_each,
            pool,
            _connected: connected,
            times: Vec::new(),
            cpu_times: Vec::new(),
            spread: [0; WORKERS],
        })
    }

    /// Times a run more.
    pub(super) fn run(&mut self) -> Result<(), BenchError> {
        let picks = self.clients.unwrap_or(1) * self.picks_each;
        let from = self.times.len() as u64 * picks;
        let at_work = self.clients.unwrap_or(1).min(cores() as u64) as f64;
        let (ns, cpu_ns, spread) = match self.clients {
            None => here(&self.pool, self.strategy, from..from + picks)?,
            Some(clients) => at_once(&self.pool, self.strategy, clients, self.picks_each, from)?,
        };
        self.times.push(ns * at_work / picks as f64);
        self.cpu_times.push(cpu_ns / picks as f64);
        for (all, run) in self.spread.iter_mut().zip(spread) {
            *all += run;
        }
        Ok(())
    }

    /// The measurements. At least one run was made.
    pub(super) fn end(mut self) -> Timed {
        self.times.sort_by(f64::total_cmp);
        self.cpu_times.sort_by(f64::total_cmp);
        Timed {
            clients: self.clients.unwrap_or(1),
            picks_each: self.picks_each,
            runs: self.times.len() as u32,
            pick_ns: self.times[self.times.len() / 2],
            cpu_pick_ns: self.cpu_times[self.cpu_times.len() / 2],
            pick_ns_least: self.times[0],
            spread: self.spread.to_vec(),
        }
    }
}

impl Timed {
    /// How far the worker farthest from an even share is from it, in percent.
    pub(super) fn uneven_percent(&self) -> f64 {
        let even = self.spread.iter().sum::<u64>() as f64 / self.spread.len() as f64;
        let off = |&picks: &u64| (picks as f64 - even).abs() / even * 100.0;
        self.spread.iter().map(off).fold(0.0, f64::max)
    }

    /// How many picks the worker with the most has more than the one with the least.
    pub(super) fn picks_apart(&self) -> u64 {
        let (least, most) = (self.spread.iter().min(), self.spread.iter().max());
        most.zip(least).map_or(0, |(most, least)| most - least)
    }
}

/// A pool in which all workers are connected.
fn pool_of(strategy: Strategy) -> Result<(Pool<usize>, Vec<Connected<usize>>), BenchError> {
    let pool = Pool::new(PoolOptions::new(strategy).size(Size::Fixed(WORKERS)));
    let connect = |n: usize| {
        let name = format!("worker-{n}");
        pool.add(&name)?;
        pool.connect(&name, n)
    };
    let connected = (0..WORKERS).map(connect).collect::<Result<_, _>>();
    let connected = connected.map_err(refused)?;
    Ok((pool, connected))
}

/// Picks once, as a client would, and releases the worker at once. Returns the worker.
fn pick(pool: &Pool<usize>, strategy: Strategy, n: u64) -> Result<usize, BenchError> {
    let picked = match strategy {
        Strategy::RoundRobin | Strategy::Random => pool.pick(0, None),
        Strategy::Hash => pool.pick_for(&n, 0),
        Strategy::Direct => pool.pick_at(n as usize % WORKERS, 0),
        Strategy::Claim => pool.claim(),
    };
    picked.map(|picked| *black_box(picked)).map_err(refused)
}

/// The time of these picks in this thread, its processor time, in nanoseconds, and the picks of each worker.
fn here(
    pool: &Pool<usize>,
    strategy: Strategy,
    picks: Range<u64>,
) -> Result<(f64, f64, Spread), BenchError> {
    let mut spread = [0; WORKERS];
    let cpu_ns = thread_cpu_ns();
    let begun = Instant::now();
    for n in picks {
        spread[pick(pool, strategy, n)?] += 1;
    }
    let ns = begun.elapsed().as_nanos() as f64;
    Ok((ns, (thread_cpu_ns() - cpu_ns) as f64, spread))
}

/// From the first client's first pick to the last one's last, and the processor time of all clients in it, in nanoseconds.
/// The threads exist before. The picks are numbered from `from` on.
fn at_once(
    pool: &Pool<usize>,
    strategy: Strategy,
    clients: u64,
    picks: u64,
    from: u64,
) -> Result<(f64, f64, Spread), BenchError> {
    let start = Barrier::new(clients as usize);
    let client = |number: u64| {
        // Numbers that no other client has.
        let first = from + number * picks;
        let mut spread = [0; WORKERS];
        start.wait();
        let cpu_ns = thread_cpu_ns();
        let begun = Instant::now();
        for n in first..first + picks {
            spread[pick(pool, strategy, n)?] += 1;
        }
        Ok((
            begun,
            Instant::now(),
            (thread_cpu_ns() - cpu_ns) as f64,
            spread,
        ))
    };
    let times = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients)
            .map(|number| {
                std::thread::Builder::new()
                    .stack_size(STACK_BYTES)
                    .spawn_scoped(scope, move || client(number))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| {
                let thread = thread.map_err(BenchError::system("start a thread"))?;
                thread.join().map_err(|_| BenchError::Thread("client"))?
            })
            .collect::<Result<Vec<(Instant, Instant, f64, Spread)>, BenchError>>()
    })?;
    let first = times.iter().map(|time| time.0).min();
    let last = times.iter().map(|time| time.1).max();
    let ns = last
        .zip(first)
        .map_or(0.0, |(last, first)| (last - first).as_nanos() as f64);
    let mut spread = [0; WORKERS];
    for (_, _, _, of_client) in &times {
        for (all, client) in spread.iter_mut().zip(of_client) {
            *all += client;
        }
    }
    Ok((ns, times.iter().map(|time| time.2).sum(), spread))
}

fn refused(error: PoolError) -> BenchError {
    BenchError::Refused {
        refused: 1,
        records: 1,
        first: error.to_string(),
    }
}

/// Workers in the pool, as in the report.
pub(super) const WORKERS: usize = 6;

/// A client needs little.
const STACK_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pick_is_counted_once() {
        for strategy in Strategy::ALL {
            let timed = |mut trial: Trial, runs: u32| {
                for _ in 0..runs {
                    trial.run().unwrap();
                }
                trial.end()
            };
            let alone = timed(Trial::alone(strategy, 1_200).unwrap(), 2);
            assert_eq!(alone.spread.len(), WORKERS);
            assert_eq!(alone.spread.iter().sum::<u64>(), 2_400, "{strategy}");
            assert!(alone.cpu_pick_ns > 0.0);
            assert!(alone.pick_ns_least > 0.0 && alone.pick_ns_least <= alone.pick_ns);
            let exact = matches!(strategy, Strategy::RoundRobin | Strategy::Direct);
            assert!(alone.picks_apart() <= 1 || !exact, "{strategy} {alone:?}");
            let together = timed(Trial::together(strategy, 8, 60).unwrap(), 3);
            assert_eq!(
                together.spread.iter().sum::<u64>(),
                8 * 60 * 3,
                "{strategy}"
            );
            let apart_max = match strategy {
                Strategy::RoundRobin => Strategy::UNEVEN_MAX as u64,
                Strategy::Direct => 1,
                _ => u64::MAX,
            };
            assert!(
                together.picks_apart() <= apart_max,
                "{strategy} {together:?}"
            );
        }
    }

    #[test]
    fn evenness_is_that_of_the_farthest() {
        let timed = |spread: &[u64]| Timed {
            clients: 1,
            picks_each: 1,
            runs: 1,
            pick_ns: 1.0,
            cpu_pick_ns: 1.0,
            pick_ns_least: 1.0,
            spread: spread.to_vec(),
        };
        assert_eq!(timed(&[100, 100]).uneven_percent(), 0.0);
        assert_eq!(timed(&[150, 50, 100]).uneven_percent(), 50.0);
        assert_eq!(timed(&[5, 4, 7]).picks_apart(), 3);
    }
}
