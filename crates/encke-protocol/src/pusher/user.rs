//! Users: who a client has signed in as, and the channel of events for that user.

use std::collections::BTreeSet;

use encke_presence::PresenceHold;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::app::App;
use super::client_message::SigninData;
use super::member::ChannelMember;
use super::server_message::signin_success;
use super::socket_id::SocketId;
use super::watchlist::{WATCHLIST_MAX, Watch};

/// The user as whom a client has signed in.
#[derive(Debug)]
pub(super) struct SignedInUser {
    pub(super) id: Box<str>,
    /// The member of presence channels that it joins without data of its own. `None`: its data exceeds the bounds of members.
    pub(super) member: Option<ChannelMember>,
    /// The key of the feed of events for the user.
    pub(super) key: u32,
    /// Its connections are closed, and it may not come back by itself.
    pub(super) is_terminated: bool,
    /// It is online while this is kept.
    pub(super) _online: Option<PresenceHold>,
    /// Whom it watches.
    pub(super) watch: Option<Watch>,
}

/// A client can't sign in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum BadSignin {
    #[error("auth is not the app's key and its signature of the socket id and user_data")]
    Signature,
    #[error(
        "user_data is a text that holds an object with id, a text of 1 to {USER_ID_BYTES_MAX} of the characters of channels"
    )]
    User,
    #[error("watchlist is a list of at most {WATCHLIST_MAX} ids of users")]
    Watchlist,
    #[error("the client has signed in already")]
    Again,
}

/// A sign-in that is accepted.
pub(super) struct AcceptedSignin {
    pub(super) user: Box<str>,
    /// As in [`SignedInUser`].
    pub(super) member: Option<ChannelMember>,
    /// Users whom it wants to watch.
    pub(super) watched: Box<[Box<str>]>,
    /// The message that confirms it.
    pub(super) confirmed: Vec<u8>,
}

/// Judges a sign-in.
pub(super) fn sign_in(
    app: &App,
    socket: SocketId,
    data: &SigninData<'_>,
) -> Result<AcceptedSignin, BadSignin> {
    #[derive(Deserialize)]
    struct UserData<'a> {
        id: String,
        #[serde(borrow)]
        user_info: Option<&'a RawValue>,
        watchlist: Option<Value>,
    }
    let key = &app.settings.key;
    if !app
        .signer
        .authorises_user(key, &data.auth, socket, &data.user_data)
    {
        return Err(BadSignin::Signature);
    }
    let user = serde_json::from_str(&data.user_data);
    let UserData {
        id,
        user_info,
        watchlist,
    } = user.map_err(|_| BadSignin::User)?;
    if !is_user_id(&id) {
        return Err(BadSignin::User);
    }
    let watched: Vec<Box<str>> = match watchlist {
        None | Some(Value::Null) => Vec::new(),
        Some(list) => serde_json::from_value(list).map_err(|_| BadSignin::Watchlist)?,
    };
    if watched.len() > WATCHLIST_MAX || watched.iter().any(|user| !is_user_id(user)) {
        return Err(BadSignin::Watchlist);
    }
    Ok(AcceptedSignin {
        user: (*id).into(),
        member: ChannelMember::new(id, user_info).ok(),
        // Each is told once.
        watched: BTreeSet::from_iter(watched).into_iter().collect(),
        confirmed: signin_success(&data.user_data),
    })
}

/// The channel of events for a user. Clients of the protocol subscribe to it when they have signed in.
pub(super) fn channel_of_user(user: &str) -> String {
    format!("{USER_CHANNEL}{user}")
}

/// The user whose channel it is, if it is one's.
pub(super) fn user_of_channel(channel: &str) -> Option<&str> {
    channel
        .strip_prefix(USER_CHANNEL)
        .filter(|user| is_user_id(user))
}

/// Whether a text can be the id of a user: it is a part of the name of a stream.
pub(super) fn is_user_id(id: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_-=@,.;".contains(&byte);
    (1..=USER_ID_BYTES_MAX).contains(&id.len()) && id.bytes().all(is_allowed)
}

const USER_CHANNEL: &str = "#server-to-user-";

/// Bytes of the id of a user.
const USER_ID_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pusher::settings::PusherApp;

    #[test]
    fn a_client_signs_in_as_the_user_that_its_app_has_signed() {
        let app = App::new(
            PusherApp::new("1", "k", "0123456789abcdef".into()),
            std::sync::Arc::default(),
        );
        let socket: SocketId = "1.2".parse().unwrap();
        let signed = |user_data: &str| {
            let signature = app.signer.sign(format!("1.2::user::{user_data}"));
            let data = SigninData {
                auth: format!("k:{signature}").into(),
                user_data: user_data.to_owned().into(),
            };
            sign_in(&app, socket, &data).map(|accepted| accepted.user)
        };
        assert_eq!(
            signed(r#"{"id":"ann","user_info":{}}"#).as_deref(),
            Ok("ann")
        );
        for bad in ["", "{}", r#"{"id":7}"#, r#"{"id":""}"#, r#"{"id":"a/b"}"#] {
            assert_eq!(signed(bad), Err(BadSignin::User), "{bad}");
        }
        let watching = |list: &str| signed(&format!(r#"{{"id":"a","watchlist":{list}}}"#));
        assert!(watching("null").is_ok() && watching(r#"["b","c"]"#).is_ok());
        let many = serde_json::to_string(&vec!["b"; WATCHLIST_MAX + 1]).unwrap();
        for bad in ["7", "[7]", r#"["a/b"]"#, &many] {
            assert_eq!(watching(bad), Err(BadSignin::Watchlist), "{bad}");
        }
        let forged = SigninData {
            auth: format!("k:{}", app.signer.sign("1.3::user::{}")).into(),
            user_data: "{}".into(),
        };
        assert_eq!(
            sign_in(&app, socket, &forged).map(drop),
            Err(BadSignin::Signature)
        );
        // The signature of a channel is none of a user.
        let other = SigninData {
            auth: format!("k:{}", app.signer.sign("1.2:user:{}")).into(),
            user_data: "{}".into(),
        };
        assert_eq!(
            sign_in(&app, socket, &other).map(drop),
            Err(BadSignin::Signature)
        );
        assert_eq!(user_of_channel(&channel_of_user("ann")), Some("ann"));
        assert_eq!(user_of_channel("#server-to-user-a b"), None);
        assert_eq!(user_of_channel("ann"), None);
    }
}
