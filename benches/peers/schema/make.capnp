@0xbf5e3a0a54e0c1d7;

# What every peer is asked for.
interface Make {
  make @0 (request :Data) -> (answer :Data);
}
