// Makes the one member a replica set, once; when it is one already, there is nothing to do. Run by mongosh.
try {
  rs.status();
} catch (error) {
  if (error.codeName !== "NotYetInitialized") throw error;
  rs.initiate({ _id: "turnstore", members: [{ _id: 0, host: "mongo:27017" }] });
}
