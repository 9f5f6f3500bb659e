//! Checks whether a machine suits a number of connections and their data, and which settings to change if not.

use encke_net::TlsSettings;

use super::check::{Check, Line, Verdict, bytes, count};
use super::data::Data;
use super::machine::Machine;
use super::memory_estimate::{MemoryEstimate, USER_BYTES};
use crate::config::Config;
use crate::descriptors;
use crate::obstacles::{self, Obstacle};
use crate::zone::NamedZone;

const SYSCTL: &str = "/etc/sysctl.d/90-encke.conf";
const LIMITS: &str = "/etc/security/limits.d/90-encke.conf";
const SYSTEMD: &str = "the [Service] section of the systemd unit";
const TMPFILES: &str = "/etc/tmpfiles.d/encke.conf";

/// All checks for this number of connections.
pub(super) fn all(
    machine: &Machine,
    connections: u64,
    estimate: &MemoryEstimate,
    data: &Data,
) -> Vec<Check> {
    let mut checks = Vec::new();
    files(machine, connections, &mut checks);
    memory(machine, estimate, &mut checks);
    sockets(machine, connections, &mut checks);
    queues(machine, connections, &mut checks);
    tracking(machine, connections, &mut checks);
    rest(machine, &mut checks);
    checks.extend(data.checks());
    checks
}

/// Whether a server with these settings can start on its addresses, with its access log and with its retention.
pub(super) fn start(config: &Config) -> Vec<Check> {
    let of_address = |(address, obstacle)| {
        unless(
            obstacle,
            format!("address, {}", NamedZone(address)),
            "free",
            "another process listens on it, or this machine does not have it",
        )
    };
    let addresses = obstacles::of_addresses(config).into_iter();
    let mut checks: Vec<Check> = addresses.map(of_address).collect();
    if let Some(obstacle) = obstacles::of_file_size(config) {
        checks.push(unless(
            Some(obstacle),
            "size of files".to_owned(),
            "at least a segment",
            "the server makes each segment as one file",
        ));
    }
    for (name, obstacle) in obstacles::of_log_files(config) {
        let why = "the server appends lines to it";
        checks.push(unless(obstacle, name, "writable", why));
    }
    checks
}

/// A check that fails with an obstacle.
fn unless(
    obstacle: Option<Obstacle>,
    name: String,
    need: &'static str,
    why: &'static str,
) -> Check {
    Check {
        name: name.into(),
        verdict: match obstacle {
            None => Verdict::Fits,
            Some(_) => Verdict::Fails,
        },
        value: obstacle.map_or_else(|| need.to_owned(), |obstacle| obstacle.text),
        need: need.to_owned(),
        why,
        set: Vec::new(),
    }
}

/// Whether the server can use the files of TLS.
pub(super) fn tls(settings: &TlsSettings) -> Check {
    let (value, verdict) = match encke_net::check_tls(settings) {
        Ok(warnings) => match warnings.first() {
            None => ("fit together".to_owned(), Verdict::Fits),
            Some(warning) => (
                format!("{}: {}", warning.path.display(), warning.why),
                Verdict::Advice,
            ),
        },
        Err(error) => (error.to_string(), Verdict::Fails),
    };
    Check {
        name: "certificates and keys of TLS".into(),
        value,
        need: "valid, and fit together".into(),
        verdict,
        why: "the server needs each certificate with its key, and clients refuse one that has expired",
        set: Vec::new(),
    }
}

fn files(machine: &Machine, connections: u64, checks: &mut Vec<Check>) {
    let files = descriptors::files(connections);
    let set = vec![
        Line {
            file: SYSTEMD,
            line: format!("LimitNOFILE={files}"),
        },
        Line {
            file: LIMITS,
            line: format!("* hard nofile {files}"),
        },
    ];
    let hard = at_least(
        "RLIMIT_NOFILE, hard",
        machine.files_hard,
        files,
        Verdict::TooLow,
        "every connection is an open file; 512 more, or four fifths if that is less, are reserved for the log and its history",
        set,
    );
    checks.push(hard);
    // The server raises the soft limit to the hard one when it starts, so it cannot be too low.
    let soft = machine.files_soft;
    checks.push(Check {
        name: "RLIMIT_NOFILE, soft".into(),
        value: soft.map_or(UNKNOWN.into(), number),
        need: NOTHING.into(),
        verdict: if soft.is_some() {
            Verdict::Fits
        } else {
            Verdict::Unknown
        },
        why: "the server raises it to the hard limit when it starts",
        set: Vec::new(),
    });
    checks.push(at_least(
        "fs.nr_open",
        machine.nr_open,
        files,
        Verdict::TooLow,
        "no process may have a higher hard limit than this",
        sysctl("fs.nr_open", files),
    ));
    let machine_wide = files.saturating_add(machine.files_open.unwrap_or(0));
    checks.push(at_least(
        "fs.file-max",
        machine.file_max,
        machine_wide,
        Verdict::TooLow,
        "limit on the open files of all processes, including those that are open now",
        sysctl("fs.file-max", machine_wide),
    ));
    checks.push(at_least(
        "fs.epoll.max_user_watches",
        machine.epoll_watches,
        connections,
        Verdict::TooLow,
        "every connection is watched by an epoll instance",
        sysctl("fs.epoll.max_user_watches", connections),
    ));
}

fn memory(machine: &Machine, estimate: &MemoryEstimate, checks: &mut Vec<Check>) {
    let need = estimate.total_bytes();
    checks.push(Check {
        name: "memory".into(),
        value: machine.memory_usable().map_or(UNKNOWN.into(), bytes),
        need: bytes(need),
        verdict: match machine.memory_usable() {
            None => Verdict::Unknown,
            Some(usable) if usable < need => Verdict::TooLow,
            Some(usable) if usable < estimate.worst_bytes() => Verdict::Advice,
            Some(_) => Verdict::Fits,
        },
        why: "the memory that is available now, within the control group's limit, compared with the expected memory",
        set: Vec::new(),
    });
    checks.push(Check {
        name: "control group, memory".into(),
        value: machine.cgroup_memory.map_or("no limit".into(), bytes),
        need: bytes(need),
        verdict: match machine.cgroup_memory {
            Some(limit) if limit < need => Verdict::TooLow,
            _ => Verdict::Fits,
        },
        why: "the kernel's memory for sockets counts towards this limit",
        set: match machine.cgroup_memory {
            Some(limit) if limit < need => {
                vec![Line {
                    file: SYSTEMD,
                    line: format!("MemoryMax={need}"),
                }]
            }
            _ => Vec::new(),
        },
    });
    let huge = machine.huge_pages.as_deref();
    checks.push(Check {
        name: "transparent huge pages".into(),
        value: huge.unwrap_or(UNKNOWN).into(),
        need: "madvise or never".into(),
        verdict: match huge {
            None => Verdict::Unknown,
            Some("always") => Verdict::Advice,
            Some(_) => Verdict::Fits,
        },
        why: "with `always`, memory grows by 2 MiB for an allocation of a few bytes",
        set: match huge {
            Some("always") => vec![Line {
                file: TMPFILES,
                line: "w /sys/kernel/mm/transparent_hugepage/enabled - - - - madvise".into(),
            }],
            _ => Vec::new(),
        },
    });
    checks.push(at_least(
        "vm.max_map_count",
        machine.map_count,
        MAPS,
        Verdict::Advice,
        "memory mappings of one process; the server has few, independent of the number of connections",
        sysctl("vm.max_map_count", 65_530),
    ));
}

fn sockets(machine: &Machine, connections: u64, checks: &mut Vec<Check>) {
    let page = rustix::param::page_size() as u64;
    // One page for each connection: a message to all subscribers takes that much for a moment.
    let pages = connections.max(TCP_PAGES_MIN);
    let enough = machine.tcp_mem.map(|[_, pressure, _]| pressure);
    checks.push(Check {
        name: "net.ipv4.tcp_mem, pressure".into(),
        value: enough.map_or(UNKNOWN.into(), |pages| bytes(pages.saturating_mul(page))),
        ..at_least("net.ipv4.tcp_mem, pressure", enough, pages, Verdict::TooLow,
            "above it the kernel shrinks the buffers of all sockets; a message to all subscribers takes a page for each \
             connection for a moment",
            vec![Line {
                file: SYSCTL,
                line: format!("net.ipv4.tcp_mem = {} {pages} {}", pages * 3 / 4, pages * 3 / 2),
            }])
    });
    if let Some(check) = checks.last_mut() {
        check.need = bytes(pages.saturating_mul(page));
    }
    let send_buffer = encke_net::NetSettings::default().send_buffer_bytes as u64;
    checks.push(at_least_bytes(
        "net.core.wmem_max",
        machine.wmem_max,
        send_buffer,
        "upper bound for tuning.send-buffer",
        sysctl("net.core.wmem_max", send_buffer),
    ));
    for (name, value, why) in [
        (
            "net.ipv4.tcp_wmem",
            machine.tcp_wmem,
            "the server sets its own send buffer (tuning.send-buffer); an idle socket holds no buffer",
        ),
        (
            "net.ipv4.tcp_rmem",
            machine.tcp_rmem,
            "bounds of the receive buffer; an idle socket holds no buffer",
        ),
    ] {
        checks.push(Check {
            name: name.into(),
            value: value.map_or(UNKNOWN.into(), |[least, default, most]| {
                format!("{} {} {}", bytes(least), bytes(default), bytes(most))
            }),
            need: NOTHING.into(),
            verdict: if value.is_some() {
                Verdict::Fits
            } else {
                Verdict::Unknown
            },
            why,
            set: Vec::new(),
        });
    }
    checks.push(Check {
        name: "net.core.rmem_max".into(),
        value: machine.rmem_max.map_or(UNKNOWN.into(), bytes),
        need: NOTHING.into(),
        verdict: if machine.rmem_max.is_some() {
            Verdict::Fits
        } else {
            Verdict::Unknown
        },
        why: "the server sets no receive buffer",
        set: Vec::new(),
    });
    let ports = machine
        .ports
        .map(|[first, last]| last.saturating_sub(first) + 1);
    let sources = ports.map_or(0, |ports| connections.div_ceil(ports.max(1)));
    checks.push(Check {
        name: "net.ipv4.ip_local_port_range".into(),
        value: match machine.ports {
            Some([first, last]) => format!("{first} to {last}"),
            None => UNKNOWN.into(),
        },
        need: match ports {
            Some(_) if sources > 1 => format!("{sources} source addresses"),
            Some(_) => "1 source address".into(),
            None => NOTHING.into(),
        },
        verdict: match ports {
            None => Verdict::Unknown,
            Some(_) if sources > 1 => Verdict::Advice,
            Some(_) => Verdict::Fits,
        },
        why: "matters for a proxy or a load generator, not for the server: each of their addresses can open one connection \
              per local port to a port of the server",
        set: if sources > 1 { sysctl_text("net.ipv4.ip_local_port_range", "1024 65535") } else { Vec::new() },
    });
}

fn queues(machine: &Machine, connections: u64, checks: &mut Vec<Check>) {
    let backlog = connections.clamp(128, encke_net::ACCEPT_BACKLOG as u64);
    let why = "connections that wait to be accepted, per shard, when all clients reconnect at once; above it, clients try \
               again after a second";
    checks.push(at_least(
        "net.core.somaxconn",
        machine.somaxconn,
        backlog,
        Verdict::Advice,
        why,
        sysctl("net.core.somaxconn", backlog),
    ));
    checks.push(at_least(
        "net.ipv4.tcp_max_syn_backlog",
        machine.syn_backlog,
        backlog,
        Verdict::Advice,
        "handshakes in progress; above it, the kernel sends SYN cookies",
        sysctl("net.ipv4.tcp_max_syn_backlog", backlog),
    ));
    let packets = if connections >= 100_000 {
        16_384
    } else {
        1_000
    };
    checks.push(at_least(
        "net.core.netdev_max_backlog",
        machine.netdev_backlog,
        packets,
        Verdict::Advice,
        "packets that wait for a core; above it, packets are dropped and retransmitted",
        sysctl("net.core.netdev_max_backlog", packets),
    ));
}

fn tracking(machine: &Machine, connections: u64, checks: &mut Vec<Check>) {
    let Some(max) = machine.conntrack_max else {
        checks.push(Check {
            name: "net.netfilter.nf_conntrack_max".into(),
            value: "not present".into(),
            need: NOTHING.into(),
            verdict: Verdict::Fits,
            why: "connections are not tracked, or tracking is not visible here",
            set: Vec::new(),
        });
        return;
    };
    let need = connections.saturating_add(machine.conntrack_count.unwrap_or(0));
    checks.push(at_least(
        "net.netfilter.nf_conntrack_max",
        Some(max),
        need,
        Verdict::TooLow,
        "the firewall tracks every connection of the machine; above it, packets are dropped",
        sysctl("net.netfilter.nf_conntrack_max", need.saturating_mul(5) / 4),
    ));
    checks.push(at_least(
        "nf_conntrack_tcp_timeout_established",
        machine.conntrack_established_s,
        TRACKED_S,
        Verdict::Advice,
        "seconds until tracking drops an idle connection; heartbeats are sent every 30 s (tuning.heartbeat)",
        sysctl("net.netfilter.nf_conntrack_tcp_timeout_established", 3_600),
    ));
}

fn rest(machine: &Machine, checks: &mut Vec<Check>) {
    let pids = machine.cgroup_pids;
    checks.push(Check {
        name: "control group, threads".into(),
        value: pids.map_or("no limit".into(), number),
        need: number(THREADS),
        verdict: if pids.is_some_and(|pids| pids < THREADS) {
            Verdict::TooLow
        } else {
            Verdict::Fits
        },
        why: "the server has a thread per core and a few more, none per connection",
        set: if pids.is_some_and(|pids| pids < THREADS) {
            vec![Line {
                file: SYSTEMD,
                line: format!("TasksMax={THREADS}"),
            }]
        } else {
            Vec::new()
        },
    });
    let clock = machine.clock.as_deref();
    checks.push(Check {
        name: "clock source".into(),
        value: clock.unwrap_or(UNKNOWN).into(),
        need: "read without system calls".into(),
        verdict: match clock {
            None => Verdict::Unknown,
            Some("tsc" | "kvm-clock" | "arch_sys_counter" | "hyperv_clocksource_tsc_page") => {
                Verdict::Fits
            }
            Some(_) => Verdict::Advice,
        },
        why: "the server reads the time several times per request",
        set: Vec::new(),
    });
}

/// Checks that a number is at least `need`.
fn at_least(
    name: &'static str,
    value: Option<u64>,
    need: u64,
    otherwise: Verdict,
    why: &'static str,
    set: Vec<Line>,
) -> Check {
    let verdict = match value {
        None => Verdict::Unknown,
        Some(value) if value < need => otherwise,
        Some(_) => Verdict::Fits,
    };
    Check {
        name: name.into(),
        value: value.map_or(UNKNOWN.into(), number),
        need: number(need),
        verdict,
        why,
        set: if matches!(verdict, Verdict::TooLow | Verdict::Advice) {
            set
        } else {
            Vec::new()
        },
    }
}

fn at_least_bytes(
    name: &'static str,
    value: Option<u64>,
    need: u64,
    why: &'static str,
    set: Vec<Line>,
) -> Check {
    Check {
        value: value.map_or(UNKNOWN.into(), bytes),
        need: bytes(need),
        ..at_least(name, value, need, Verdict::Advice, why, set)
    }
}

fn sysctl(name: &'static str, value: u64) -> Vec<Line> {
    sysctl_text(name, &value.to_string())
}

fn sysctl_text(name: &'static str, value: &str) -> Vec<Line> {
    vec![Line {
        file: SYSCTL,
        line: format!("{name} = {value}"),
    }]
}

fn number(number: u64) -> String {
    match number {
        u64::MAX => "unlimited".into(),
        number => count(number),
    }
}

/// Shown for a value that the machine does not provide.
const UNKNOWN: &str = "unknown";

/// Shown where any value is sufficient.
const NOTHING: &str = "any";

/// The least need: every machine has that much.
const TCP_PAGES_MIN: u64 = 4_096;

/// Mappings for thread stacks, the allocator and history.
const MAPS: u64 = 4_096;

/// Threads, including those that compact history.
const THREADS: u64 = 64;

/// Twice the time between two heartbeats, and some more: tracking must not drop a live connection.
const TRACKED_S: u64 = 120;

// The expected memory is computed with this figure.
const _: () = assert!(USER_BYTES >= 256);
