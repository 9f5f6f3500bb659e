{
  description = "Encke, a real-time push server on open protocols with a durable log";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-unstable";

  outputs =
    { self, nixpkgs }:
    let
      systems = [
        "x86_64-linux"
        "aarch64-linux"
      ];
      forAll = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
      manifest = (nixpkgs.lib.importTOML ./Cargo.toml).workspace.package;
    in
    {
      packages = forAll (pkgs: rec {
        encke = pkgs.rustPlatform.buildRustPackage {
          pname = "encke";
          inherit (manifest) version;
          src = self;
          cargoLock.lockFile = ./Cargo.lock;
          # The allocator is built by make, and the cryptography by cmake where no list of its files is there.
          nativeBuildInputs = [
            pkgs.cmake
            pkgs.installShellFiles
          ];
          dontUseCmakeConfigure = true;
          cargoBuildFlags = [ "--package=encke" ];
          # The tests of the whole need programs and a network (`make test`).
          doCheck = false;
          BUILD_COMMIT = self.shortRev or "";
          SOURCE_DATE_EPOCH = toString self.lastModified;
          postInstall = ''
            $out/bin/encke man man
            installManPage man/*.1
            installShellCompletion --cmd encke \
              --bash <($out/bin/encke completions bash) \
              --zsh <($out/bin/encke completions zsh) \
              --fish <($out/bin/encke completions fish)
            install -Dm644 packaging/systemd/encke.service packaging/systemd/socket/* -t $out/lib/systemd/system
            substituteInPlace $out/lib/systemd/system/encke.service --replace-fail /usr/bin/encke $out/bin/encke
          '';
          meta = {
            description = "Real-time push server on open protocols with a durable log";
            homepage = manifest.repository;
            license = pkgs.lib.licenses.mit;
            mainProgram = "encke";
            platforms = systems;
          };
        };
        default = encke;
      });
      devShells = forAll (pkgs: {
        default = pkgs.mkShell {
          inputsFrom = [ self.packages.${pkgs.stdenv.hostPlatform.system}.encke ];
          packages = [
            pkgs.clippy
            pkgs.rustfmt
            pkgs.nodejs
            pkgs.go
            pkgs.python3
          ];
        };
      });
    };
}
