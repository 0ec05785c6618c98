"""Writes an SPDX 2.3 document (JSON) about one build: sbom.py TOOL VERSION SECONDS. The program and the Debian packages
of the libraries that it is linked with; SECONDS since 1970 are the time of creation, so that equal builds give equal files."""
import datetime
import hashlib
import json
import os
import re
import subprocess
import sys


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def owner(path):
    """The package of a library, which may be in its list under the name before /lib became a link to /usr/lib."""
    real = os.path.realpath(path)
    for name in (real, real.replace("/usr/lib/", "/lib/", 1)):
        found = subprocess.run(["dpkg-query", "-S", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if found.returncode == 0:
            return found.stdout.splitlines()[0].rsplit(": ", 1)[0]
    return None


def libraries(tool):
    """What the tool names itself, not what those need: that follows from their packages."""
    named = set(re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", tool)))
    for line in output("ldd", tool).splitlines():
        found = re.match(r"\s*(\S+)(?: => (\S+))? \(0x", line)
        path = found and (found.group(2) or found.group(1))
        if path and os.path.basename(found.group(1)) in named:
            yield path


def package(name, version, **more):
    identifier = "SPDXRef-" + re.sub("[^A-Za-z0-9.-]", "-", name)
    return {"SPDXID": identifier, "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "copyrightText": "NOASSERTION", "licenseDeclared": "NOASSERTION",
            "licenseConcluded": "NOASSERTION", **more}


def debian(name):
    version, source, source_version, arch = output(
        "dpkg-query", "-W", "-f", "${Version}\t${source:Package}\t${source:Version}\t${Architecture}", name).split("\t")
    plain = name.split(":")[0]
    return package(plain, version, sourceInfo="Debian source package %s %s" % (source, source_version), externalRefs=[
        {"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
         "referenceLocator": "pkg:deb/debian/%s@%s?arch=%s" % (plain, version.replace(":", "%3A"), arch)}])


def main(tool, version, seconds):
    with open(tool, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    kvasir = package("kvasir", version, licenseDeclared="Apache-2.0", licenseConcluded="Apache-2.0",
                     primaryPackagePurpose="APPLICATION", checksums=[{"algorithm": "SHA256", "checksumValue": digest}])
    owners = {path: owner(path) for path in libraries(tool)}
    unknown = sorted(path for path, name in owners.items() if not name)
    if unknown:
        sys.exit("sbom: no Debian package owns %s" % ", ".join(unknown))
    linked = [debian(name) for name in sorted(set(owners.values()))]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", kvasir["SPDXID"])]
    relations += [(kvasir["SPDXID"], "DYNAMIC_LINK", p["SPDXID"]) for p in linked]
    created = datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": "kvasir-" + version,
        "documentNamespace": "https://spdx.org/spdxdocs/kvasir-%s-%s" % (version, digest[:32]),
        "creationInfo": {"created": created, "creators": ["Tool: kvasir-tools-package"]},
        "packages": [kvasir] + linked,
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                          for a, kind, b in relations]}
    json.dump(document, sys.stdout, indent=2)
    print()


main(*sys.argv[1:])
