//! What a reload takes over of another configuration. Which settings it applies, their list says (`settings.rs`).

use super::Config;
use super::settings::{SETTINGS, Setting};
use super::{presence, pusher};

impl Config {
    /// Takes from another configuration what a reload applies, except who may do what. Returns the names of the settings that differ and
    /// need a restart.
    pub(crate) fn take_reloaded(&mut self, other: &Config) -> Vec<String> {
        let differs = |setting: &&Setting| (setting.get)(self) != (setting.get)(other);
        let waiting = SETTINGS.iter().filter(|setting| !setting.is_reloaded);
        let mut waiting: Vec<_> = waiting.filter(differs).map(Setting::label).collect();
        if self.presence != other.presence {
            waiting.push(presence::NAME.to_owned());
        }
        if self.pusher != other.pusher {
            waiting.push(pusher::NAME.to_owned());
        }
        self.log.clone_from(&other.log);
        self.cors_origins.clone_from(&other.cors_origins);
        self.hosts.clone_from(&other.hosts);
        self.net.connections_per_address = other.net.connections_per_address;
        self.net.request_rate = other.net.request_rate;
        self.net.request_burst = other.net.request_burst;
        waiting
    }

    /// Takes from another configuration what has been in force since a reload, also who may do what.
    pub(crate) fn take_current(&mut self, other: &Config) {
        // What needs a restart has its one.
        self.take_reloaded(other);
        self.access.clone_from(&other.access);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::Given;
    use super::*;

    fn config(toml: &str) -> anyhow::Result<Config> {
        let mut given = Given::default();
        given.file(Path::new("encke.toml"), toml)?;
        Config::new(&given, None)
    }

    #[test]
    fn a_reload_takes_what_is_marked_and_names_the_rest() {
        let mut all = String::new();
        for setting in SETTINGS.iter().filter(|setting| setting.is_reloaded) {
            let value = match setting.name {
                "log" => "'debug'",
                "cors-origins" => "'https://a.example'",
                "hosts" => "'a.example'",
                "connections-per-address" | "request-rate" | "request-burst" => "7",
                name => panic!("add {name} to Config::take_reloaded, and here"),
            };
            let tuning = if setting.is_tuning() { "tuning." } else { "" };
            all += &format!("{tuning}{} = {value}\n", setting.name);
        }
        let other = config(&all).unwrap();
        let mut running = config("").unwrap();
        assert_eq!(running.take_reloaded(&other), [""; 0]);
        for setting in SETTINGS {
            let (now, given) = ((setting.get)(&running), (setting.get)(&other));
            assert_eq!(now, given, "{}", setting.name);
        }
        let other = config("ring = '1MiB'\nlog = 'trace'\ntuning.heartbeat = '5s'").unwrap();
        let waiting = ["--ring", "tuning.heartbeat"];
        for _ in 0..2 {
            assert_eq!(running.take_reloaded(&other), waiting, "until the restart");
        }
        assert_eq!(running.log, "trace");
        assert_ne!(running.net.ring_bytes, other.net.ring_bytes);
        let app = "[[pusher.apps]]\nid = '1'\nkey = 'k'\nsecret = '0123456789abcdef'";
        let other = config(app).unwrap();
        let mut running = config("").unwrap();
        assert_eq!(running.take_reloaded(&other), ["pusher"]);
        let other = config("[[presence.streams]]\nnames = 'a'").unwrap();
        let mut running = config("").unwrap();
        assert_eq!(running.take_reloaded(&other), ["presence"]);
    }
}
