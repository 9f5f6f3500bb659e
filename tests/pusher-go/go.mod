// The server library of Pusher for Go, and WebSockets of its clients. `make go` tests the server with them as they are pinned here.
module encke.test/pusher

go 1.24.0

require (
	github.com/gorilla/websocket v1.5.3
	github.com/pusher/pusher-http-go/v5 v5.1.1
	golang.org/x/crypto v0.0.0-20200709230013-948cd5f35899
)

require golang.org/x/sys v0.0.0-20190412213103-97732733099d // indirect
