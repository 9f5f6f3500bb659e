//! Idempotent producers over connections that are cut at any byte: each record is there exactly once, in the order of its producer.
//!
//! `ENCKE_PRODUCER_RECORDS` is the number of records; `make producer-load` runs a hundred thousand and prints their rate.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::rig::{Connection, Encke, JSON, data_dir, eventually, path, request};

const PRODUCERS: u64 = 20;
const RECORDS: u64 = 4_000;
/// One connection in so many requests is cut.
const CUT_EVERY: u64 = 8;
const KILLS: u32 = 3;

struct Producer {
    id: u64,
    /// The next record that was not acknowledged.
    next: u64,
    random: u64,
    cuts: u64,
}

impl Producer {
    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn request(&self) -> Vec<u8> {
        let (id, seq) = (self.id, self.next);
        let fields = [
            JSON.to_owned(),
            format!("Producer-Id: producer-{id}"),
            "Producer-Epoch: 0".to_owned(),
            format!("Producer-Seq: {seq}"),
        ];
        let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
        let body = format!("[[{id},{seq}]]");
        request("POST", &path("shared"), &fields, body.as_bytes())
    }

    /// Appends the next record, over a connection that may be cut before, in or behind the request. False: the connection is gone.
    fn append(&mut self, server: &mut Connection) -> bool {
        let request = self.request();
        if self.random(CUT_EVERY) == 0 {
            let sent = self.random(request.len() as u64 + 1) as usize;
            server.send_anyway(&request[..sent]);
            if self.random(2) == 0 {
                // The server has begun with it.
                std::thread::sleep(Duration::from_micros(self.random(2_000)));
            }
            self.cuts += 1;
            return false;
        }
        if !server.send_anyway(&request) {
            return false;
        }
        let Some(answer) = server.answer_if_alive() else {
            return false;
        };
        match answer.status {
            // 204: it was there before.
            200 | 204 => self.next += 1,
            503 => {}
            _ => panic!("{answer:?}"),
        }
        true
    }

    fn run(&mut self, records: u64, address: &Mutex<SocketAddr>, done: &AtomicU64) {
        while self.next < records {
            let mut opened = None;
            eventually("a server takes connections", || {
                let place = *address.lock().expect("not poisoned");
                opened = Connection::try_open(place).ok();
                opened.is_some()
            });
            let mut server = opened.expect("it is open");
            let before = self.next;
            while self.next < records && self.append(&mut server) {}
            done.fetch_add(self.next - before, Ordering::Relaxed);
            if self.random(2) == 0 {
                server.reset();
            }
        }
    }
}

#[test]
fn each_record_is_there_once_though_connections_are_cut() {
    let records = std::env::var("ENCKE_PRODUCER_RECORDS").ok();
    let records: u64 = records.map_or(RECORDS, |text| text.parse().expect("a number"));
    let each = records.div_ceil(PRODUCERS);
    let data = data_dir();
    let first = Encke::start_in(data.path(), &[]);
    first.create("shared");
    let address = Mutex::new(first.address);
    let mut encke = Some(first);
    let done = AtomicU64::new(0);
    let begin = Instant::now();
    let mut producers: Vec<Producer> = (0..PRODUCERS)
        .map(|id| Producer {
            id,
            next: 0,
            random: id + 0x9e37_79b9,
            cuts: 0,
        })
        .collect();
    std::thread::scope(|scope| {
        for producer in &mut producers {
            let (address, done) = (&address, &done);
            scope.spawn(move || producer.run(each, address, done));
        }
        for kill in 1..=KILLS {
            let upto = each * PRODUCERS * u64::from(kill) / u64::from(KILLS + 1);
            let mut had = done.load(Ordering::Relaxed);
            while had < upto {
                let more = || done.load(Ordering::Relaxed);
                eventually("the producers go on", || more() > had);
                had = more();
            }
            let mut place = address.lock().expect("not poisoned");
            encke.take().expect("it runs").kill();
            let next = Encke::start_in(data.path(), &[]);
            *place = next.address;
            encke = Some(next);
        }
    });
    let took = begin.elapsed();
    let encke = encke.expect("it runs");
    let mut next = vec![0; PRODUCERS as usize];
    for message in encke.messages("shared") {
        let (id, seq) = (message[0].as_u64(), message[1].as_u64());
        let expected = &mut next[id.expect("a producer") as usize];
        assert_eq!(seq, Some(*expected), "of producer {id:?}");
        *expected += 1;
    }
    assert!(next.iter().all(|count| *count == each), "{next:?}");
    let cuts: u64 = producers.iter().map(|producer| producer.cuts).sum();
    assert!(cuts > each * PRODUCERS / CUT_EVERY / 2, "{cuts} cuts");
    println!(
        "{} records of {PRODUCERS} producers, {cuts} connections cut and {KILLS} kills: each is there once; {:.0} records/s",
        each * PRODUCERS,
        (each * PRODUCERS) as f64 / took.as_secs_f64(),
    );
}
