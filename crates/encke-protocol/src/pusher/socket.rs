//! A connection: its subscriptions, and what it does for each message.

use std::borrow::Cow;
use std::sync::Arc;

use encke_access::CallersOut;
use encke_clock::SteadyTime;
use encke_presence::PresenceHold;
use encke_stream::{Command, home};

use super::app::{App, ConnectionPlace};
use super::channel_name::ChannelName;
use super::channel_stream::{ChannelSource, ChannelStream};
use super::client_event::{self, ClientEventRate, NewClientEvent};
use super::client_message::{ClientEvent, ClientMessage, SigninData, SubscribeData};
use super::context::PusherContext;
use super::member::{BadMember, ChannelMember, Membership, arrive, enter};
use super::position::parse_position;
use super::server_message::{self, PusherCode, subscription_error};
use super::socket_id::SocketId;
use super::stream_names::channel_of;
use super::subscribe::{PusherSubscribe, may_succeed_later, refused_subscription, unserved};
use super::user::{
    AcceptedSignin, BadSignin, SignedInUser, channel_of_user, sign_in, user_of_channel,
};
use super::watchlist::online_name;
use crate::action::{
    Action, Channel, ChannelAction, ChannelClose, ChannelEnd, ChannelMessage, FeedEnd,
    RegrantedChannel,
};
use crate::misspelled::shown;
use crate::moved_channel::{MovedChannel, MovedSocket, MovedSocketChannel};
use crate::problem;
use crate::response::Response;
use crate::streams::load;

/// A connection of an app.
#[derive(Debug)]
pub(super) struct PusherSocket {
    context: Arc<PusherContext>,
    place: ConnectionPlace,
    id: SocketId,
    /// The client knows its id.
    is_established: bool,
    next_key: u32,
    client_events: ClientEventRate,
    subscriptions: Vec<PusherSubscription>,
    user: Option<Box<SignedInUser>>,
}

// What an idle connection costs beside its subscriptions.
const _: () = assert!(size_of::<PusherSocket>() <= 72);

#[derive(Debug)]
struct PusherSubscription {
    /// Of its feed.
    key: u32,
    /// The name of the channel's stream, which all subscriptions share.
    stream: Arc<str>,
    /// It is counted until this is dropped.
    _hold: PresenceHold,
    /// Of a presence channel.
    membership: Option<Box<Membership>>,
}

impl PusherSubscription {
    fn channel(&self) -> &str {
        channel_of(&self.stream)
    }
}

/// A connection that is closed as soon as it is open, because clients read close codes and no responses.
#[derive(Debug)]
pub(super) struct RefusedSocket(pub(super) PusherCode, pub(super) &'static str);

impl PusherSocket {
    pub(super) fn new(context: Arc<PusherContext>, place: ConnectionPlace) -> Self {
        PusherSocket {
            id: context.socket_ids.next(),
            context,
            place,
            is_established: false,
            next_key: 1,
            client_events: ClientEventRate::default(),
            subscriptions: Vec::new(),
            user: None,
        }
    }

    /// Takes a connection over from another process. `None`: there is no such app, or no room to count its subscriptions.
    pub(super) fn arrive(context: &Arc<PusherContext>, moved: &MovedSocket) -> Option<Self> {
        let app = context.app_of_id(&moved.app)?;
        let subscriptions =
            moved
                .channels
                .iter()
                .map(|MovedSocketChannel { key, name, member }| {
                    let membership = member.as_ref().map(|(key, id, info)| {
                        let member = ChannelMember {
                            id: id.clone(),
                            info: info.clone(),
                        };
                        Box::new(Membership { member, key: *key })
                    });
                    let member = membership.as_ref().map(|membership| &membership.member);
                    let hold = arrive((context, app), &app.stream(name), member).ok()?;
                    Some(PusherSubscription {
                        key: *key,
                        stream: hold.stream(),
                        _hold: hold,
                        membership,
                    })
                });
        let keys = moved.channels.iter();
        let last = keys
            .map(|one| {
                one.member
                    .as_ref()
                    .map_or(one.key, |(key, ..)| one.key.max(*key))
            })
            .chain(moved.user.as_ref().map(|(_, key)| *key))
            .max();
        Some(PusherSocket {
            context: Arc::clone(context),
            place: app.keep_place(),
            id: SocketId::from_number(moved.socket),
            is_established: true,
            next_key: last.unwrap_or_default().wrapping_add(1).max(1),
            client_events: ClientEventRate::default(),
            subscriptions: subscriptions.collect::<Option<_>>()?,
            user: moved.user.as_ref().map(|(id, key)| {
                let watched = moved.watched.clone();
                let at = SteadyTime::from_ms(0);
                let member = moved.user_member.clone();
                let member = member.map(|(id, info)| ChannelMember { id, info });
                let user = (id.clone(), member);
                let user = signed_in_user((context, app), user, *key, watched, at);
                if let Some(watch) = &user.watch {
                    app.shared.watchers.note_moved(watch);
                }
                Box::new(user)
            }),
        })
    }

    fn handle(&mut self, parsed: ClientMessage<'_>, message: &ChannelMessage<'_>) -> ChannelAction {
        match parsed {
            ClientMessage::Ping => respond(200, server_message::pong()),
            ClientMessage::Pong => respond(200, Vec::new()),
            ClientMessage::Subscribe(data) => self
                .subscribe(&data, message)
                .unwrap_or_else(|refused| plain(Action::Respond(refused))),
            ClientMessage::Unsubscribe { channel } => match self.place_of(&channel) {
                Some(place) => {
                    let ended = self.subscriptions.swap_remove(place);
                    let members = ended.membership.map(|one| (one.key, Response::new(200)));
                    ChannelAction {
                        ended: members.into_iter().collect(),
                        ..plain(Action::Unsubscribe(ended.key, Response::new(200)))
                    }
                }
                // It may cross with the refusal of the subscription.
                None => respond(200, Vec::new()),
            },
            ClientMessage::Signin(data) => self
                .sign_in(&data, message)
                .unwrap_or_else(|why| refuse(Some(PusherCode::UNAUTHORISED), &why)),
            ClientMessage::ClientEvent(event) => self
                .client_event(&event, message)
                .unwrap_or_else(|why| refuse(Some(PusherCode::NOT_SERVED), &why)),
            ClientMessage::NotEnabled(event) => {
                let why = format!("{} is not enabled on this server", shown(&event));
                refuse(None, &why)
            }
        }
    }

    fn subscribe(
        &mut self,
        data: &SubscribeData<'_>,
        message: &ChannelMessage<'_>,
    ) -> Result<ChannelAction, Response> {
        let (context, app) = (Arc::clone(&self.context), Arc::clone(self.place.app()));
        let refused = |kind, status, why: &str| {
            let message = subscription_error(&data.channel, kind, status, why);
            Response::new(status).body(message)
        };
        if let Some(user) = user_of_channel(&data.channel) {
            // It follows it since it has signed in.
            return match self.user.as_deref().is_some_and(|of| *of.id == *user) {
                true => Ok(respond(200, server_message::subscribed(&data.channel))),
                false => {
                    let why = "the channel is for clients that have signed in as its user";
                    Err(refused("AuthError", 401, why))
                }
            };
        }
        let channel = ChannelName::parse(&data.channel)
            .map_err(|why| refused("ChannelError", 400, &why.to_string()))?;
        if channel.is_private() {
            self.check_auth(channel, data)
                .map_err(|why| refused("AuthError", 401, why))?;
        }
        let member = match channel.is_presence() {
            true => Some(
                self.member(data)
                    .map_err(|why| refused("ChannelError", 400, &why.to_string()))?,
            ),
            false => None,
        };
        let after = data.encke_after.as_deref();
        let after = after.map(|after| parse_position(&app, channel.as_str(), after));
        let after = after
            .transpose()
            .map_err(|why| refused("ChannelError", 400, &format!("encke_after: {why}")))?;
        if self.place_of(channel.as_str()).is_some() {
            let why = format!(
                "the connection is subscribed to the channel {}",
                channel.as_str()
            );
            let message = server_message::error(None, &why);
            return Err(Response::new(400).body(message));
        }
        let max = app.settings.channels_per_connection_max;
        if self.subscriptions.len() >= max {
            let why = format!("a connection may be subscribed to at most {max} channels");
            return Err(refused("LimitReached", 429, &why));
        }
        let streams = &context.streams;
        let name = app.stream(channel.as_str());
        let is_refused = |response: Response| refused_subscription(channel.as_str(), &response);
        streams.check_name(&name).map_err(is_refused)?;
        if streams.in_fleet && message.barriers == 0 {
            let log = home(&name, streams.views.logs());
            return Ok(plain(Action::AwaitOrder(log, Vec::new())));
        }
        // Before the look-up: a stream that it does not find is created behind this record.
        let at = streams.views.committed(home(&name, streams.views.logs()));
        let found = ChannelStream::find(streams, &app, &name, message.now);
        let group = app.awaited_group(channel.is_private());
        let subscribe = PusherSubscribe {
            context: Arc::clone(&context),
            app: Arc::clone(&app),
            channel: channel.as_str().into(),
            name: name.as_str().into(),
            group,
            is_cache: channel.is_cache(),
            after,
            members_key: member.is_some().then_some(self.next_key),
            watched: Box::default(),
            first: Vec::new(),
            beside: None,
        };
        let source = match found.map_err(is_refused)? {
            ChannelStream::Unknown => return Ok(plain(load(&name, Vec::new()))),
            ChannelStream::Missing(_) => {
                let max = app.settings.channels_max;
                if streams.views.awaited(group) >= max {
                    let why = format!(
                        "{max} channels of this kind wait for their first event, which is the limit (channels-max)"
                    );
                    return Err(refused("LimitReached", 429, &why));
                }
                ChannelSource::Awaited(at)
            }
            ChannelStream::Found(stream) => ChannelSource::Stream(stream),
        };
        let action = subscribe.begin(source, message.now);
        if let Action::Respond(_) = action {
            return Ok(plain(action));
        }
        let hold = enter((&context, &app), &name, member.as_ref(), message.now.steady)
            .map_err(|why| refused("LimitReached", 429, &why.to_string()))?;
        let membership = member.map(|member| {
            let key = self.next_key();
            Box::new(Membership { member, key })
        });
        let key = self.next_key();
        self.subscriptions.push(PusherSubscription {
            key,
            stream: hold.stream(),
            _hold: hold,
            membership,
        });
        Ok(ChannelAction {
            key,
            ..plain(action)
        })
    }

    /// Signs in, and follows the events for the user.
    fn sign_in(
        &mut self,
        data: &SigninData<'_>,
        message: &ChannelMessage<'_>,
    ) -> Result<ChannelAction, Cow<'static, str>> {
        let app = Arc::clone(self.place.app());
        let signed_in = sign_in(&app, self.id, data).map_err(|why| why.to_string())?;
        let AcceptedSignin {
            user,
            member,
            watched,
            confirmed,
        } = signed_in;
        if self.user.is_some() {
            return Err(BadSignin::Again.to_string().into());
        }
        let channel = channel_of_user(&user);
        let name = app.stream(&channel);
        let streams = &self.context.streams;
        if streams.in_fleet && message.barriers == 0 {
            let log = home(&name, streams.views.logs());
            return Ok(plain(Action::AwaitOrder(log, Vec::new())));
        }
        let is_refused = |refused: Response| Cow::from(problem::message(&refused));
        let found = ChannelStream::find(streams, &app, &name, message.now);
        let subscribe = PusherSubscribe {
            context: Arc::clone(&self.context),
            app: Arc::clone(&app),
            channel: channel.into(),
            name: name.as_str().into(),
            group: app.awaited_group(true),
            is_cache: false,
            after: None,
            members_key: None,
            watched: match app.settings.watchlists {
                true => watched.clone(),
                false => Box::default(),
            },
            first: vec![confirmed],
            beside: None,
        };
        let found = found.map_err(is_refused)?;
        if let ChannelStream::Unknown = found {
            return Ok(plain(load(&name, Vec::new())));
        }
        // It watches before it is told who is online, so that it misses nobody.
        let key = self.next_key();
        let user = signed_in_user(
            (&self.context, &app),
            (user, member),
            key,
            watched,
            message.now.steady,
        );
        let action = match found {
            ChannelStream::Missing(create) => {
                Action::Change(Command::Create(*create), Box::new(subscribe))
            }
            ChannelStream::Found(stream) => {
                subscribe.begin(ChannelSource::Stream(stream), message.now)
            }
            ChannelStream::Unknown => return Ok(plain(load(&name, Vec::new()))),
        };
        if let Action::Respond(_) = action {
            return Ok(plain(action));
        }
        self.user = Some(Box::new(user));
        Ok(ChannelAction {
            key,
            ..plain(action)
        })
    }

    /// Sends an event to the other subscribers of a channel.
    fn client_event(
        &mut self,
        event: &ClientEvent<'_>,
        message: &ChannelMessage<'_>,
    ) -> Result<ChannelAction, Cow<'static, str>> {
        let app = &self.place.app().settings;
        let channel = client_event::check(event, app)?;
        let Some(place) = self.place_of(channel.as_str()) else {
            let why = "client events go to channels that the connection is subscribed to";
            return Err(why.into());
        };
        let max = app.client_events_per_second;
        let second = message.now.steady.as_ms() / 1000;
        let app = self.place.app();
        let (streams, name) = (&self.context.streams, app.stream(channel.as_str()));
        let is_refused = |refused: Response| Cow::from(problem::message(&refused));
        let found = ChannelStream::find(streams, app, &name, message.now).map_err(is_refused)?;
        if let ChannelStream::Unknown = found {
            return Ok(plain(load(&name, Vec::new())));
        }
        if !self.client_events.count(second, max) {
            let why = format!("a connection may send {max} client events within a second");
            return Err(why.into());
        }
        let membership = self.subscriptions[place].membership.as_deref();
        let user = membership.map(|membership| &*membership.member.id);
        let event = NewClientEvent::new((&self.context, app), event, (self.id, user));
        Ok(plain(match found {
            ChannelStream::Unknown => load(&name, Vec::new()),
            ChannelStream::Found(stream) => event
                .broadcast(&stream, message.now.wall)
                .map_err(is_refused)?,
            // It is the first event of the channel.
            ChannelStream::Missing(create) => {
                Action::Change(Command::Create(*create), Box::new(event))
            }
        }))
    }

    /// The member whom a subscription to a presence channel names, or else the user as whom the client has signed in.
    fn member(&self, data: &SubscribeData<'_>) -> Result<ChannelMember, BadMember> {
        match data.channel_data.as_deref() {
            Some(data) => ChannelMember::parse(data),
            None => {
                let user = self.user.as_deref();
                let member = user.and_then(|user| user.member.clone());
                member.ok_or(BadMember::NoUser)
            }
        }
    }

    fn check_auth(
        &self,
        channel: ChannelName<'_>,
        data: &SubscribeData<'_>,
    ) -> Result<(), &'static str> {
        let app = self.place.app();
        let auth = data.auth.as_deref().unwrap_or_default();
        if auth.is_empty() {
            return Err("the channel needs a subscription that is authorised: auth is missing");
        }
        let at = (self.id, channel.as_str());
        let key = &app.settings.key;
        match app
            .signer
            .authorises(key, auth, at, data.channel_data.as_deref())
        {
            true => Ok(()),
            false => {
                Err("auth is not the app's key and its signature of the socket id and the channel")
            }
        }
    }

    /// The key of a feed.
    fn next_key(&mut self) -> u32 {
        let key = self.next_key;
        // A connection that has begun so many feeds does not have the first one any more.
        self.next_key = key.wrapping_add(1).max(1);
        key
    }

    fn place_of(&self, channel: &str) -> Option<usize> {
        let mut subscriptions = self.subscriptions.iter();
        subscriptions.position(|one| one.channel() == channel)
    }
}

impl Channel for PusherSocket {
    fn message(&mut self, message: ChannelMessage<'_>) -> ChannelAction {
        // The opening brings the first message itself.
        if !std::mem::replace(&mut self.is_established, true) {
            return respond(200, server_message::established(self.id));
        }
        match ClientMessage::parse(message.text) {
            Ok(parsed) => self.handle(parsed, &message),
            Err(why) => refuse(None, &why.to_string()),
        }
    }

    fn ended(&mut self, key: u32, end: FeedEnd) -> Vec<u8> {
        self.subscriptions.retain(|one| one.key != key);
        if let Some(user) = self.user.as_deref_mut().filter(|user| user.key == key) {
            match end {
                // The client may sign in again.
                FeedEnd::NeverBegan => self.user = None,
                FeedEnd::Told | FeedEnd::Deleted => user.is_terminated = true,
                FeedEnd::Dismissed | FeedEnd::Failed(_) => {}
            }
        }
        // The close code says what the client does.
        Vec::new()
    }

    fn closes(&mut self) {
        self.subscriptions.clear();
        self.user = None;
    }

    fn refuse(&self, text: &str, refused: Response) -> Response {
        match ClientMessage::parse(text) {
            Ok(ClientMessage::Subscribe(data)) => refused_subscription(&data.channel, &refused),
            Ok(ClientMessage::Signin(_)) if may_succeed_later(&refused) => unserved(),
            _ => {
                let why = problem::message(&refused);
                let message = server_message::error(Some(PusherCode::NOT_SERVED), &why);
                Response::new(refused.status).body(message)
            }
        }
    }

    fn regrant(&mut self) -> Option<RegrantedChannel> {
        None
    }

    fn farewell(&self, why: &str) -> Vec<u8> {
        server_message::error(None, why)
    }

    fn has_caller(&self) -> bool {
        true
    }

    fn moved(&self, _callers: &mut CallersOut) -> MovedChannel {
        let subscriptions = self.subscriptions.iter();
        let channels = subscriptions.map(|one| MovedSocketChannel {
            key: one.key,
            name: one.channel().into(),
            member: one.membership.as_ref().map(|one| {
                let ChannelMember { id, info } = one.member.clone();
                (one.key, id, info)
            }),
        });
        MovedChannel::Pusher(MovedSocket {
            app: self.place.app().settings.id.as_str().into(),
            socket: self.id.number(),
            channels: channels.collect(),
            user: self.user.as_deref().map(|user| (user.id.clone(), user.key)),
            user_member: self.user.as_deref().and_then(|user| {
                let ChannelMember { id, info } = user.member.clone()?;
                Some((id, info))
            }),
            watched: self.user.as_deref().map_or_else(Box::default, |user| {
                let watch = user.watch.as_ref();
                watch.map_or_else(Box::default, |watch| watch.watched.clone())
            }),
        })
    }

    fn close_code(&self, end: ChannelEnd) -> Option<u16> {
        let code = match end {
            ChannelEnd::NoPong => PusherCode::NO_PONG,
            ChannelEnd::FeedEnded
                if self.user.as_deref().is_some_and(|user| user.is_terminated) =>
            {
                PusherCode::UNAUTHORISED
            }
            // It subscribes again when it is back.
            ChannelEnd::Stopping | ChannelEnd::ServedElsewhere | ChannelEnd::FeedEnded => {
                PusherCode::RECONNECT
            }
            // Clients do not repeat what was refused, but all of it when they come back.
            ChannelEnd::Unserved => PusherCode::OVER_CAPACITY,
        };
        Some(code.number())
    }

    fn number(&self) -> Option<u64> {
        Some(self.id.number())
    }
}

impl Channel for RefusedSocket {
    fn message(&mut self, _: ChannelMessage<'_>) -> ChannelAction {
        let RefusedSocket(code, why) = *self;
        plain(Action::Close(ChannelClose {
            message: server_message::error(Some(code), why),
            code: code.number(),
            why,
            label: code.label(),
        }))
    }

    fn ended(&mut self, _: u32, _: FeedEnd) -> Vec<u8> {
        Vec::new()
    }

    fn refuse(&self, _: &str, refused: Response) -> Response {
        Response::new(refused.status)
    }

    fn regrant(&mut self) -> Option<RegrantedChannel> {
        None
    }

    fn farewell(&self, _: &str) -> Vec<u8> {
        Vec::new()
    }

    fn has_caller(&self) -> bool {
        true
    }

    /// It is closed at once, so that no other process ever takes it over: one that does knows no app without an id.
    fn moved(&self, _: &mut CallersOut) -> MovedChannel {
        MovedChannel::Pusher(MovedSocket {
            app: "".into(),
            socket: 0,
            channels: Vec::new(),
            user: None,
            user_member: None,
            watched: Box::default(),
        })
    }
}

/// A client signs in as a user, who is online from then on if anybody may watch it.
fn signed_in_user(
    (context, app): (&PusherContext, &App),
    (id, member): (Box<str>, Option<ChannelMember>),
    key: u32,
    watched: Box<[Box<str>]>,
    now: SteadyTime,
) -> SignedInUser {
    let is_told = app.settings.watchlists;
    let online = ChannelMember {
        id: id.clone(),
        info: None,
    };
    let stream = app.stream(&online_name(&id));
    SignedInUser {
        // Without room for it nobody learns that the user is online, and everything else goes on.
        _online: is_told
            .then(|| enter((context, app), &stream, Some(&online), now).ok())
            .flatten(),
        watch: (is_told && !watched.is_empty()).then(|| app.shared.watchers.watch(&id, watched)),
        id,
        member,
        key,
        is_terminated: false,
    }
}

fn respond(status: u16, message: Vec<u8>) -> ChannelAction {
    plain(Action::Respond(Response::new(status).body(message)))
}

fn refuse(code: Option<PusherCode>, why: &str) -> ChannelAction {
    respond(400, server_message::error(code, why))
}

fn plain(action: Action) -> ChannelAction {
    ChannelAction {
        action,
        key: 0,
        caller: None,
        ended: Vec::new(),
    }
}
