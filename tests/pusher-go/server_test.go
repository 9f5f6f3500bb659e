package pusher_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/pusher/pusher-http-go/v5"
)

const (
	appID  = "31"
	key    = "app-key"
	secret = "a secret of the app 31"
	// How long anything may take, on a busy machine.
	timeout = time.Minute
)

var listening = regexp.MustCompile(`^listening on http://(\S+)\n$`)

// The address of the server that all tests use.
var address string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

// run runs the tests with a server of the real binary, which it stops.
func run(m *testing.M) int {
	// The server dies with the thread that has started it, which is to be the end of the tests.
	runtime.LockOSThread()
	folder, err := os.MkdirTemp("", "encke-go-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	server, err := start(folder)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the server does not start:", err)
		return 1
	}
	defer func() {
		server.Process.Kill()
		server.Wait()
	}()
	return m.Run()
}

// start starts the binary with an app, and sets the address.
func start(folder string) (*exec.Cmd, error) {
	config := filepath.Join(folder, "encke.toml")
	app := fmt.Sprintf("[[pusher.apps]]\nid = %q\nkey = %q\nsecret = %q\n", appID, key, secret)
	if err := os.WriteFile(config, []byte(app), 0o600); err != nil {
		return nil, err
	}
	server := exec.Command(os.Getenv("ENCKE_BIN"), "serve", "--listen", "127.0.0.1:0", "--log", "warn",
		"--data", filepath.Join(folder, "data"), "--config", config,
		"--tuning", "audit-log-file="+filepath.Join(folder, "audit"))
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	server.Stderr = os.Stderr
	output, err := server.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := server.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(output).ReadString('\n')
	found := listening.FindStringSubmatch(line)
	if found == nil {
		server.Process.Kill()
		server.Wait()
		return nil, fmt.Errorf("it prints %q (%v)", line, err)
	}
	address = found[1]
	return server, nil
}

// library returns the library as a server of the app has it, with a secret.
func library(secret string) *pusher.Client {
	return &pusher.Client{
		AppID:                     appID,
		Key:                       key,
		Secret:                    secret,
		Host:                      address,
		HTTPClient:                &http.Client{Timeout: timeout},
		EncryptionMasterKeyBase64: "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
	}
}

// client is a connection of a client: a plain WebSocket.
type client struct {
	t        *testing.T
	socket   *websocket.Conn
	socketID string
}

// message is one of the protocol, in either direction.
type message struct {
	Event   string          `json:"event"`
	Channel string          `json:"channel,omitempty"`
	Data    json.RawMessage `json:"data"`
}

func connect(t *testing.T) *client {
	t.Helper()
	dialer := websocket.Dialer{HandshakeTimeout: timeout}
	socket, _, err := dialer.Dial("ws://"+address+"/app/"+key+"?protocol=7&client=test&version=1", nil)
	check(t, err)
	t.Cleanup(func() { socket.Close() })
	client := &client{t: t, socket: socket}
	var established struct {
		SocketID string `json:"socket_id"`
	}
	client.receive("pusher:connection_established", "", &established)
	client.socketID = established.SocketID
	return client
}

// receive takes the next message, which is that event, and the JSON of its data.
func (c *client) receive(event, channel string, data any) {
	c.t.Helper()
	received := c.next()
	if received.Event != event || received.Channel != channel {
		c.t.Fatalf("%s %s %s comes instead of %s %s", received.Event, received.Channel, received.Data, event, channel)
	}
	check(c.t, json.Unmarshal(received.Data, data))
}

// next takes the next message, whose data is a string that holds JSON, or is that JSON.
func (c *client) next() message {
	c.t.Helper()
	var received message
	check(c.t, c.socket.SetReadDeadline(time.Now().Add(timeout)))
	check(c.t, c.socket.ReadJSON(&received))
	var text string
	if json.Unmarshal(received.Data, &text) == nil {
		received.Data = json.RawMessage(text)
	}
	return received
}

func (c *client) send(event string, data any) {
	c.t.Helper()
	check(c.t, c.socket.WriteJSON(map[string]any{"event": event, "data": data}))
}

// subscribe subscribes with what the library has signed, if anything, and takes the confirmation.
func (c *client) subscribe(channel string, signed []byte) presence {
	c.t.Helper()
	data := map[string]string{}
	if signed != nil {
		check(c.t, json.Unmarshal(signed, &data))
	}
	delete(data, "shared_secret")
	data["channel"] = channel
	c.send("pusher:subscribe", data)
	var confirmed struct {
		Presence presence `json:"presence"`
	}
	c.receive("pusher_internal:subscription_succeeded", channel, &confirmed)
	return confirmed.Presence
}

// form is what a client asks its server to sign.
func (c *client) form(channel string) []byte {
	return []byte(url.Values{"socket_id": {c.socketID}, "channel_name": {channel}}.Encode())
}

// presence is what a client learns when it subscribes to a presence channel.
type presence struct {
	Count int                          `json:"count"`
	Hash  map[string]map[string]string `json:"hash"`
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
