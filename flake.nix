{
  description = "Coding agent for editors with compaction that you can preview and undo";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixpkgs-unstable";

  outputs = { self, nixpkgs }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      forEach = make: nixpkgs.lib.genAttrs systems (system: make nixpkgs.legacyPackages.${system});
      manifest = builtins.fromTOML (builtins.readFile ./Cargo.toml);
    in
    {
      packages = forEach (pkgs: {
        default = pkgs.rustPlatform.buildRustPackage {
          pname = "epitome";
          version = manifest.workspace.package.version;
          src = self;
          cargoLock.lockFile = ./Cargo.lock;
          buildType = "dist";
          buildFeatures = [ "postgres" "zstd" ];
          cargoBuildFlags = [ "-p" "epitome" "-p" "epitome-import" "-p" "epitome-compact" "-p" "epitome-ahp" "-p" "epitome-acp-check" ];
          # They start sandboxes and daemons, which the sandbox of a Nix build forbids.
          doCheck = false;
          nativeBuildInputs = [ pkgs.installShellFiles ];
          postInstall = ''
            $out/bin/epitome completions man > epitome.1
            installManPage epitome.1
            for shell in bash zsh fish; do
              $out/bin/epitome completions $shell > completions.$shell
            done
            installShellCompletion --cmd epitome \
              --bash completions.bash --zsh completions.zsh --fish completions.fish
          '';
          meta = {
            homepage = manifest.workspace.package.repository;
            license = with pkgs.lib.licenses; [ mit asl20 ];
            mainProgram = "epitome";
            platforms = systems;
          };
        };
      });

      devShells = forEach (pkgs: {
        default = pkgs.mkShell { packages = with pkgs; [ cargo rustc clippy rustfmt ]; };
      });
    };
}
