// Package pusher_test tests the Pusher protocol with the server library of Pusher for Go, unchanged. Clients are plain WebSockets.
//
//	ENCKE_BIN=... go test
package pusher_test

import (
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/pusher/pusher-http-go/v5"
	"golang.org/x/crypto/nacl/secretbox"
)

func TestEventsReachSubscribersInOrder(t *testing.T) {
	client, other := connect(t), connect(t)
	for _, channel := range []string{"events-a", "events-b"} {
		client.subscribe(channel, nil)
	}
	other.subscribe("events-a", nil)
	server := library(secret)
	check(t, server.Trigger("events-a", "said", map[string]string{"text": "hällo"}))
	expect(t, receive[any](client, "said", "events-a"), map[string]any{"text": "hällo"})
	check(t, server.TriggerMulti([]string{"events-a", "events-b"}, "both", 1))
	reached := map[string]string{}
	for range 2 {
		both := client.next()
		reached[both.Channel] = both.Event + string(both.Data)
	}
	expect(t, reached, map[string]string{"events-a": "both1", "events-b": "both1"})
	subscribers := "subscription_count"
	counted, err := server.TriggerWithParams("events-a", "said", 2,
		pusher.TriggerParams{SocketID: &client.socketID, Info: &subscribers})
	check(t, err)
	expect(t, *counted.Channels["events-a"].SubscriptionCount, 2)
	check(t, server.Trigger("events-a", "said", 3))
	expect(t, receive[int](client, "said", "events-a"), 3)
	for _, event := range []message{
		{Event: "said", Data: json.RawMessage(`{"text":"hällo"}`)},
		{Event: "both", Data: json.RawMessage("1")},
		{Event: "said", Data: json.RawMessage("2")},
		{Event: "said", Data: json.RawMessage("3")},
	} {
		got := other.next()
		expect(t, got.Event+string(got.Data), event.Event+string(event.Data))
	}
}

func TestTheEventsOfABatchReachTheirChannels(t *testing.T) {
	causer, other := connect(t), connect(t)
	for _, client := range []*client{causer, other} {
		client.subscribe("batch", nil)
	}
	subscribers := "subscription_count"
	answer, err := library(secret).TriggerBatch([]pusher.Event{
		{Channel: "batch", Name: "first", Data: 1, SocketID: &causer.socketID, Info: &subscribers},
		{Channel: "batch-unheard", Name: "unheard", Data: 0, Info: &subscribers},
		{Channel: "batch", Name: "second", Data: 2},
	})
	check(t, err)
	counts := []any{}
	for _, item := range answer.Batch {
		if item.SubscriptionCount == nil {
			counts = append(counts, nil)
		} else {
			counts = append(counts, *item.SubscriptionCount)
		}
	}
	expect(t, counts, []any{2, 0, nil})
	expect(t, receive[int](other, "first", "batch"), 1)
	expect(t, receive[int](other, "second", "batch"), 2)
	expect(t, receive[int](causer, "second", "batch"), 2)
}

func TestAPrivateChannelTakesTheSignatureForItsSocket(t *testing.T) {
	client, other := connect(t), connect(t)
	server := library(secret)
	stolen, err := server.AuthorizePrivateChannel(other.form("private-orders"))
	check(t, err)
	authorisation := map[string]string{"channel": "private-orders"}
	check(t, json.Unmarshal(stolen, &authorisation))
	client.send("pusher:subscribe", authorisation)
	refused := receive[map[string]any](client, "pusher:subscription_error", "private-orders")
	expect(t, refused["type"], "AuthError")
	signed, err := server.AuthorizePrivateChannel(client.form("private-orders"))
	check(t, err)
	client.subscribe("private-orders", signed)
	check(t, server.Trigger("private-orders", "placed", 7))
	expect(t, receive[int](client, "placed", "private-orders"), 7)
}

func TestAnEncryptedChannelIsReadWithTheSharedSecret(t *testing.T) {
	const channel = "private-encrypted-notes"
	client := connect(t)
	server := library(secret)
	signed, err := server.AuthorizePrivateChannel(client.form(channel))
	check(t, err)
	client.subscribe(channel, signed)
	check(t, server.Trigger(channel, "noted", "secret words"))
	noted := receive[struct{ Nonce, Ciphertext []byte }](client, "noted", channel)
	var shared struct {
		Secret string `json:"shared_secret"`
	}
	check(t, json.Unmarshal(signed, &shared))
	sharedSecret, err := base64.StdEncoding.DecodeString(shared.Secret)
	check(t, err)
	text, isOpen := secretbox.Open(nil, noted.Ciphertext, (*[24]byte)(noted.Nonce), (*[32]byte)(sharedSecret))
	expect(t, isOpen, true)
	expect(t, string(text), "secret words")
}

func TestTheMembersOfAPresenceChannelAreKnown(t *testing.T) {
	const channel = "presence-room"
	server := library(secret)
	join := func(user string) (*client, presence) {
		client := connect(t)
		member := pusher.MemberData{UserID: user, UserInfo: map[string]string{"name": strings.ToUpper(user)}}
		signed, err := server.AuthorizePresenceChannel(client.form(channel), member)
		check(t, err)
		return client, client.subscribe(channel, signed)
	}
	ann, alone := join("ann")
	expect(t, alone, presence{Count: 1, Hash: map[string]map[string]string{"ann": {"name": "ANN"}}})
	bob, both := join("bob")
	expect(t, both.Hash, map[string]map[string]string{"ann": {"name": "ANN"}, "bob": {"name": "BOB"}})
	expect(t, receive[pusher.MemberData](ann, "pusher_internal:member_added", channel).UserID, "bob")
	page, _ := join("bob")

	users, err := server.GetChannelUsers(channel)
	check(t, err)
	named := map[string]bool{}
	for _, user := range users.List {
		named[user.ID] = true
	}
	expect(t, named, map[string]bool{"ann": true, "bob": true})
	expect(t, len(users.List), 2)
	info := "user_count,subscription_count"
	counted, err := server.Channel(channel, pusher.ChannelParams{Info: &info})
	check(t, err)
	expect(t, *counted, pusher.Channel{Name: channel, Occupied: true, UserCount: 2, SubscriptionCount: 3})

	page.socket.Close()
	bob.socket.Close()
	expect(t, receive[pusher.MemberData](ann, "pusher_internal:member_removed", channel).UserID, "bob")
	users, err = server.GetChannelUsers(channel)
	check(t, err)
	expect(t, users.List, []pusher.User{{ID: "ann"}})
}

func TestChannelsAreListedWhileTheyHaveSubscribers(t *testing.T) {
	client := connect(t)
	server := library(secret)
	signed, err := server.AuthorizePresenceChannel(client.form("presence-listed"), pusher.MemberData{UserID: "ann"})
	check(t, err)
	client.subscribe("presence-listed", signed)
	list := func(prefix, info string) map[string]pusher.ChannelListItem {
		t.Helper()
		params := pusher.ChannelsParams{FilterByPrefix: &prefix}
		if info != "" {
			params.Info = &info
		}
		list, err := server.Channels(params)
		check(t, err)
		return list.Channels
	}
	expect(t, list("presence-listed", "user_count"), map[string]pusher.ChannelListItem{"presence-listed": {UserCount: 1}})
	for _, channel := range []string{"listed-a", "listed-b"} {
		client.subscribe(channel, nil)
	}
	expect(t, list("listed-", ""), map[string]pusher.ChannelListItem{"listed-a": {}, "listed-b": {}})
	client.send("pusher:unsubscribe", map[string]string{"channel": "listed-b"})
	// A subscription is confirmed behind it.
	client.subscribe("listed-c", nil)
	expect(t, list("listed-", ""), map[string]pusher.ChannelListItem{"listed-a": {}, "listed-c": {}})
	left, err := server.Channel("listed-b", pusher.ChannelParams{})
	check(t, err)
	expect(t, left.Occupied, false)
}

func TestAUserGetsEventsOfItsOwn(t *testing.T) {
	server := library(secret)
	clients := map[string]*client{"ann": connect(t), "bob": connect(t)}
	for user, client := range clients {
		signed, err := server.AuthenticateUser(client.form(""), map[string]any{"id": user})
		check(t, err)
		client.send("pusher:signin", json.RawMessage(signed))
		receive[any](client, "pusher:signin_success", "")
	}
	for user := range clients {
		check(t, server.SendToUser(user, "invited", user))
	}
	for user, client := range clients {
		got := client.next()
		expect(t, got.Channel+" "+got.Event+" "+string(got.Data), "#server-to-user-"+user+" invited "+user)
	}
}

func TestRefusalsAreErrorsWithAReason(t *testing.T) {
	other := library("another secret of the app")
	refused := map[string]error{"trigger": other.Trigger("refused", "said", 1)}
	_, refused["channels"] = other.Channels(pusher.ChannelsParams{})
	_, refused["users"] = other.GetChannelUsers("presence-refused")
	for what, err := range refused {
		if err == nil || !strings.HasPrefix(err.Error(), "Status Code: 401") || !strings.Contains(err.Error(), "auth_signature") {
			t.Errorf("%s with another secret: %v", what, err)
		}
	}
	_, err := library(secret).GetChannelUsers("refused")
	if err == nil || !strings.HasPrefix(err.Error(), "Status Code: 400") {
		t.Errorf("users of a channel without members: %v", err)
	}
	// The library has a limit of its own, which this lifts.
	large := library(secret)
	large.OverrideMaxMessagePayloadKB = 20
	check(t, large.Trigger("refused", "said", strings.Repeat("x", 10_240)))
	err = large.Trigger("refused", "said", strings.Repeat("x", 10_241))
	if err == nil || !strings.HasPrefix(err.Error(), "Status Code: 413") {
		t.Errorf("an event that is too large: %v", err)
	}
}

// receive takes the next message, which is that event, and returns the JSON of its data.
func receive[T any](c *client, event, channel string) T {
	c.t.Helper()
	var data T
	c.receive(event, channel, &data)
	return data
}

func expect(t *testing.T, got, expected any) {
	t.Helper()
	if !reflect.DeepEqual(got, expected) {
		t.Fatalf("%v instead of %v", got, expected)
	}
}
