# For a tap: `brew install --build-from-source packaging/homebrew/encke.rb` tries it. The server needs Linux; Homebrew runs there, too.
class Encke < Formula
  desc "Real-time push server on open protocols with a durable log"
  homepage "https://github.com/encke/encke"
  url "https://github.com/encke/encke.git", tag: "v0.1.0"
  license "MIT"
  head "https://github.com/encke/encke.git", branch: "main"

  depends_on "cmake" => :build
  depends_on "rust" => :build
  depends_on :linux

  def install
    system "cargo", "install", *std_cargo_args(path: "crates/encke")
    generate_completions_from_executable(bin/"encke", "completions")
    system bin/"encke", "man", buildpath/"man"
    man1.install Dir["man/*.1"]
    pkgetc.install "packaging/encke.toml"
    inreplace pkgetc/"encke.toml", "/var/lib/encke", var/"encke"
  end

  service do
    run [opt_bin/"encke", "serve", "--config", etc/"encke/encke.toml"]
    keep_alive true
    working_dir var
    error_log_path var/"log/encke.log"
  end

  test do
    port = free_port
    server = spawn bin/"encke", "serve", "--listen", "127.0.0.1:#{port}", "--data", testpath/"data"
    stream = "http://127.0.0.1:#{port}/v1/stream/test"
    system "curl", "--silent", "--fail", "--retry-connrefused", "--retry", "20", "--retry-delay", "1",
           "-X", "PUT", stream, "-H", "Content-Type: text/plain", "-d", "hello"
    assert_equal "hello", shell_output("curl --silent --fail '#{stream}?offset=-1'")
  ensure
    Process.kill "TERM", server
    Process.wait server
  end
end
